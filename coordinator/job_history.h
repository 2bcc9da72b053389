#ifndef SPARROW_COORDINATOR_JOB_HISTORY_H_
#define SPARROW_COORDINATOR_JOB_HISTORY_H_

// What a job keeps of its reports: lists that grow for as long as it runs, kept bounded.

#include <cstdint>
#include <optional>

#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

// A loss curve past this is thinned out: every second point goes, and from then on every second new point is kept; and
// so on, so that the points stay evenly spaced.
inline constexpr int kLossPointsMax = 100'000;
// Evaluations past this: every second one goes. The newest is always there.
inline constexpr int kEvalsMax = 1'000;

// Not thread-safe.
class JobHistory {
 public:
  // Appends the report's points and evaluations to `status`. Those of a step that is there already are passed over, so
  // that a repeated report changes nothing.
  void Append(const v1::ReportRequest& report, v1::JobStatus* status);

 private:
  uint64_t loss_stride_ = 1;  // Of this many points that come, one is kept.
  uint64_t losses_seen_ = 0;
  std::optional<uint64_t> last_loss_step_;
};

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_JOB_HISTORY_H_
