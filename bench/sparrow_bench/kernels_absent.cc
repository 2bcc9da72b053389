// In a build without CUDA there are no kernels to measure, and no GPU (base/cuda/absent.cc).

#include "base/cuda/stream.h"
#include "bench/sparrow_bench/kernels.h"

namespace sparrow::bench {

absl::StatusOr<std::vector<Fields>> MeasureKernels(const std::string&) {
  return absl::UnimplementedError(GpuAbsence());
}

}  // namespace sparrow::bench
