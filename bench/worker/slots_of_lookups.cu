#include "base/cuda/launch.cuh"
#include "bench/worker/slots_of_lookups.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;

// One thread a look-up. Bytes moved: 12 a look-up, 4 of them anywhere in the slots of the batch, which lie in L2. Bound
// by L2.
__global__ void __launch_bounds__(kBlock)
    SlotsKernel(const uint32_t* index, uint32_t n, const uint32_t* slots, uint32_t* output) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < n) output[i] = slots[index[i]];
}

}  // namespace

void SlotsOfLookups(const uint32_t* index, uint32_t n, const uint32_t* slots, uint32_t* output, const Stream& queue) {
  Launch(SlotsKernel, (int64_t{n} + kBlock - 1) / kBlock, kBlock, queue, index, n, slots, output);
}

}  // namespace sparrow
