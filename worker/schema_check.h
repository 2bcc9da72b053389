#ifndef SPARROW_WORKER_SCHEMA_CHECK_H_
#define SPARROW_WORKER_SCHEMA_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// The half of ValidateJob (worker/job_check.h) that is about job.data: sources, format, and that every feature finds
// its column and every categorical column its feature.
absl::Status ValidateData(const v1::Job& job);

// Dense inputs that the format gives. REQUIRES: ValidateData passed.
uint32_t DenseColumnCount(const v1::DataConfig& data);

}  // namespace sparrow

#endif  // SPARROW_WORKER_SCHEMA_CHECK_H_
