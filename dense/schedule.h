#ifndef SPARROW_DENSE_SCHEDULE_H_
#define SPARROW_DENSE_SCHEDULE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// InvalidArgument names the field and its value.
absl::Status CheckSchedule(const v1::ScheduleConfig& config);

// The factor on every learning rate at `step` (from 0): warm-up, then decay, by the formulas of
// proto/sparrow/v1/job.proto. REQUIRES: CheckSchedule passed.
double LearningRateFactor(const v1::ScheduleConfig& config, uint64_t step);

}  // namespace sparrow

#endif  // SPARROW_DENSE_SCHEDULE_H_
