#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/step_totals_gpu.h"

namespace sparrow {
namespace {

// One thread. Bytes moved: 36. Bound by the launch.
__global__ void StepTotalsKernel(const double* loss_sum, const uint32_t* samples, const uint64_t* not_finite,
                                 float* totals) {
  PutStepTotals(*loss_sum, *samples, not_finite != nullptr && *not_finite != 0, totals);
}

}  // namespace

void StepTotalsGpu(const double* loss_sum, const uint32_t* samples, const uint64_t* not_finite, float* totals,
                   const Stream& stream) {
  const Operation operation([&] { return OperationCost{.name = "step totals", .bytes = 36}; });
  Launch(StepTotalsKernel, 1, 1, stream, loss_sum, samples, not_finite, totals);
}

}  // namespace sparrow
