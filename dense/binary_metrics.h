#ifndef SPARROW_DENSE_BINARY_METRICS_H_
#define SPARROW_DENSE_BINARY_METRICS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace sparrow {

// How well scores predict labels, over a whole set.
struct BinaryMetrics {
  uint64_t rows = 0;
  double logloss = 0;         // Mean binary cross-entropy; 0 where rows is 0.
  std::optional<double> auc;  // Exact: by rank sums, ties count 0.5.
  std::string auc_reason;     // Why auc is absent: "undefined: one class" or "undefined: no rows".
  double calibration = 0;     // Mean prediction / mean label; 0 where there is no positive label.
};

BinaryMetrics ComputeBinaryMetrics(std::span<const float> logits /*[n]*/,
                                   std::span<const float> labels /*[n], 0 or 1*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_BINARY_METRICS_H_
