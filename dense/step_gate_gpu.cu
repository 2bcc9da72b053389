#include <cuda/std/limits>

#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/step_gate_gpu.h"

namespace sparrow {
namespace {

// One thread. Bytes moved: 24. Bound by the launch.
__global__ void GateKernel(const double* loss_sum, const uint64_t* not_finite, double* gradient_scale) {
  if (isfinite(*loss_sum) && (not_finite == nullptr || *not_finite == 0)) return;
  *gradient_scale = cuda::std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

void GateStepGpu(const double* loss_sum, const uint64_t* not_finite, double* gradient_scale, const Stream& stream) {
  const Operation operation([&] { return OperationCost{.name = "step gate", .bytes = 24}; });
  Launch(GateKernel, 1, 1, stream, loss_sum, not_finite, gradient_scale);
}

}  // namespace sparrow
