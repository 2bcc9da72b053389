#ifndef SPARROW_WORKER_JOB_CHECK_H_
#define SPARROW_WORKER_JOB_CHECK_H_

#include "absl/status/status.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

inline constexpr uint32_t kBatchRowsMax = 1 << 24;
inline constexpr uint64_t kHotRowsMax = uint64_t{1} << 31;  // Of train.hot_rows.
inline constexpr uint32_t kGpt2LayersMax = 1024;
inline constexpr uint32_t kGpt2WidthMax = 1 << 16;
inline constexpr uint32_t kGpt2ContextMax = 1 << 20;

// Checks a whole job without touching a file: names, what refers to what, sizes, data schema, model against tables,
// optimizers, schedule. InvalidArgument names the field by its path, its value, and the remedy, in one line. What
// passes here can still fail on its data.
//
// A language model (model.gpt2) has data.tokens and no tables and features; what says how rows are read, kept or sent
// (data.on_bad_row, bad_rows_max, dense_transform, unlabelled; train.prefetch, pull_type, push_type, hot_rows;
// model.layer_initializer) is refused there by name, not passed over.
//
// train.epochs 0 is a job that only evaluates: it needs data.test, and data.train may be left out.
absl::Status ValidateJob(const v1::Job& job);

// The same for a job whose input is only read, not trained on or evaluated: its sources may be unlabelled.
absl::Status ValidateJobForReading(const v1::Job& job);

}  // namespace sparrow

#endif  // SPARROW_WORKER_JOB_CHECK_H_
