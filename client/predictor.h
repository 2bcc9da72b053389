#ifndef SPARROW_CLIENT_PREDICTOR_H_
#define SPARROW_CLIENT_PREDICTOR_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

struct PredictionOptions {
  std::string checkpoint_root;
  std::string checkpoint;  // Under it.
  std::string data_root = ".";
  uint64_t memory_bytes = uint64_t{4} << 30;  // DRAM for rows; those beyond it go to a scratch directory.
  std::function<bool()> cancelled;            // Polled while rows are read; true ends with Cancelled. Null: never.
};

// InvalidArgument: a checkpoint of this job predicts nothing for a row, as it is a language model's.
absl::Status CheckPredicts(const v1::Job& job);

// Writes the checkpoint's prediction for every row of job.data.test, in order, to `path` as CSV: row,label,probability.
// The label is empty where the rows have none (data.test.unlabelled). Rows count from 0; ones that did not fit and were
// skipped are not counted. Returns the rows written. The job is the checkpoint's, but for where its data lies.
absl::StatusOr<uint64_t> WritePredictions(const v1::Job& job, const PredictionOptions& options,
                                          const std::string& path);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_PREDICTOR_H_
