#ifndef SPARROW_CLIENT_PREDICTOR_H_
#define SPARROW_CLIENT_PREDICTOR_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

struct PredictionOptions {
  std::string checkpoint_root;
  std::string checkpoint;  // Under it.
  std::string data_root;
  uint64_t memory_bytes = 0;  // DRAM for rows.
  std::string scratch;        // Directory for the rows beyond it.
};

// Writes the checkpoint's prediction for every row of job.data.test, in order, to `path` as CSV: row,label,probability.
// Rows count from 0; ones that did not fit and were skipped are not counted. Returns the rows written. The job is the
// checkpoint's, but for where its data lies.
absl::StatusOr<uint64_t> WritePredictions(const v1::Job& job, const PredictionOptions& options,
                                          const std::string& path);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_PREDICTOR_H_
