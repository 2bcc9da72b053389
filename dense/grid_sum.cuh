#ifndef SPARROW_DENSE_GRID_SUM_CUH_
#define SPARROW_DENSE_GRID_SUM_CUH_

// A sum over all threads of a grid without float atomics: each block adds its threads' values in a fixed tree, and the
// block that ends last adds the blocks' sums, in the order of their numbers. One launch, and two runs are bit-equal.

#include <algorithm>
#include <cstdint>

#include "dense/grid_sum.h"

namespace sparrow {

// Blocks for `threads` threads, at least one, so that an empty sum is written too.
inline int64_t GridSumBlocks(int64_t threads, int block) {
  return std::clamp<int64_t>((threads + block - 1) / block, 1, GridSums::kBlocksMax);
}

// The sum of `value` over the block, in thread 0. Called by all threads.
template <int kBlock>
__device__ double BlockSum(double value) {
  static_assert(kBlock % 32 == 0 && kBlock <= 1024);
  __shared__ double warps[kBlock / 32];
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(~0u, value, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = threadIdx.x < kBlock / 32 ? warps[threadIdx.x] : 0;
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(~0u, value, distance);
  }
  __syncthreads();  // `warps` may be written again.
  return value;
}

// True in one thread of the grid, which then has the sum of all threads' `value` in *total. Called by all threads,
// once. REQUIRES: blockDim.x == kBlock and gridDim.x <= GridSums::kBlocksMax.
template <int kBlock>
__device__ bool GridSum(double value, GridSums* sums, double* total) {
  __shared__ bool last;
  const double sum = BlockSum<kBlock>(value);
  if (threadIdx.x == 0) {
    sums->partials[blockIdx.x] = sum;
    __threadfence();  // The sum is seen before it is counted.
    last = atomicInc(&sums->finished, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();
  double mine = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kBlock) mine += __ldcg(&sums->partials[i]);
  *total = BlockSum<kBlock>(mine);
  return threadIdx.x == 0;
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_GRID_SUM_CUH_
