#include "dense/gpu_meeting.h"

#include <string>
#include <utility>
#include <vector>

#include "base/cuda/stream.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "dense/reduction_terms.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<DeviceCollective>> MeetGpus(std::span<const GradientBucket> buckets,
                                                           const Meeting& meeting) {
  Collective* const group = meeting.collective;
  ASSIGN_OR_RETURN(const ReductionPlan plan, AgreeOnReduction({.able = NcclVersion() > 0 && meeting.board != nullptr,
                                                               .library = NcclVersion(),
                                                               .gpu = HashBytes(GpuUuid()),
                                                               .floats = static_cast<uint64_t>(buckets.front().end),
                                                               .layout = FingerprintOf(buckets)},
                                                              group));
  if (!plan.on_gpus) {
    LOG(INFO) << "gradients are summed through the host: " << plan.why_not;
    return nullptr;
  }
  absl::StatusOr<std::unique_ptr<DeviceCollective>> met =
      MakeNcclCollective({.rank = group->rank(), .size = group->size(), .cancelled = meeting.cancelled}, meeting.board);
  if (absl::IsCancelled(met.status())) return met.status();
  // All of them, or none.
  ASSIGN_OR_RETURN(const std::vector<std::string> troubles, group->AllGather(met.status().message()));
  for (size_t rank = 0; rank < troubles.size(); ++rank) {
    if (troubles[rank].empty()) continue;
    LOG(WARNING) << "gradients are summed through the host, which is slow, because rank " << rank
                 << " cannot reach the others by NCCL: " << troubles[rank];
    return nullptr;
  }
  LOG(INFO) << "gradients are summed between " << group->size() << " GPUs by NCCL " << NcclVersion() << ", in "
            << buckets.size() << " buckets";
  return met;
}

}  // namespace sparrow
