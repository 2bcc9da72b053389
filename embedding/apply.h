#ifndef SPARROW_EMBEDDING_APPLY_H_
#define SPARROW_EMBEDDING_APPLY_H_

// Making and updating whole records (embedding/row_layout.h): what every table of the CPU does with a row. Compiled
// once and without fused multiply-add, so a row's bits depend on its updates alone, not on the tier it was in.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "embedding/table_spec.h"

namespace sparrow {

struct ApplyOptions {
  double gradient_scale = 1;        // The gradient is multiplied by this.
  double learning_rate_factor = 1;  // The learning rate is multiplied by this. Not negative.
  uint64_t step = 0;                // Kept as the row's last step.
};

// Larger gradients (after scaling) are refused like infinite ones: their squares would leave the optimizer's state
// infinite, and the row lost, long before a weight is NaN.
inline constexpr float kGradientMax = 1e15f;

// InvalidArgument, naming table, key and column, if a gradient times `scale` is NaN or above kGradientMax in magnitude.
absl::Status CheckGradients(const TableSpec& spec, std::span<const Key> keys /*[n]*/,
                            std::span<const float> gradients /*[n, dim]*/, double scale);

// Initial weights, the optimizer's initial state, metadata of no update. `record` is spec.Layout().record_bytes() long
// and, as below, aligned to 4.
void InitRowCpu(const TableSpec& spec, Key key, char* record);

// One update of one row, counted in its metadata.
void UpdateRowCpu(const TableSpec& spec, const ApplyOptions& options, const float* gradient /*[dim]*/, char* record);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_APPLY_H_
