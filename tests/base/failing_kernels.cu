#include "base/cuda/launch.cuh"
#include "tests/base/failing_kernels.h"

namespace sparrow {
namespace {

__global__ void StoreKernel(int* to) { *to = 1; }

}  // namespace

void LaunchWithTooManyThreads(const Stream& stream) {
  Launch(StoreKernel, 1, 2048, stream, static_cast<int*>(nullptr));
}

void StoreToNowhere(const Stream& stream) { Launch(StoreKernel, 1, 1, stream, static_cast<int*>(nullptr)); }

}  // namespace sparrow
