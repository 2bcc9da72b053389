// In a build without CUDA there is no step to profile, and no GPU (base/cuda/absent.cc).

#include "base/cuda/stream.h"
#include "bench/sparrow_bench/step_profile.h"

namespace sparrow::bench {

absl::StatusOr<std::vector<Fields>> ProfileStep(const StepProfileFlags&) {
  return absl::UnimplementedError(GpuAbsence());
}

}  // namespace sparrow::bench
