#ifndef SPARROW_DENSE_COLUMN_SUMS_CUH_
#define SPARROW_DENSE_COLUMN_SUMS_CUH_

// How kernels sum a matrix's columns without float atomics: blocks sum some rows each, and leave their sums as rows of
// a second, small matrix, which AddPartialSums adds up. Both orders depend on the matrix's shape alone.

#include <algorithm>
#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/row_packs.cuh"

namespace sparrow {

// What blocks have left: partial sums [rows, cols + second_cols].
struct PartialSums {
  const float* values = nullptr;
  int64_t rows = 0;
  float* to = nullptr;  // [cols], added to.
  int64_t cols = 0;
  float* second = nullptr;  // [second_cols], likewise.
  int64_t second_cols = 0;
};
void AddPartialSums(const PartialSums& sums, const Stream& stream);

constexpr int kStripeBlock = 256;
constexpr int kStripePacks = 8;  // Side by side in a row: 128 bytes, a line of the cache.
constexpr int kStripeRows = kStripeBlock / kStripePacks;

// How a matrix is cut into blocks: a stripe of kStripePacks packs of columns, and some of the rows.
struct StripeGrid {
  int64_t stripes = 0;
  int64_t row_blocks = 0;
  int64_t rows_a_block = 0;

  static StripeGrid Of(int64_t n, int64_t cols, int64_t stripe_cols) {
    constexpr int64_t kBlocks = 2112;  // About: 16 for each multiprocessor of an H200, the same on every GPU.
    constexpr int64_t kRowsMin = 4 * kStripeRows;  // Of a block, so that its threads have some rows each.
    const int64_t stripes = (cols + stripe_cols - 1) / stripe_cols;
    const int64_t row_blocks = std::clamp<int64_t>(kBlocks / std::max<int64_t>(1, stripes), 1,
                                                   std::max<int64_t>(1, (n + kRowsMin - 1) / kRowsMin));
    const int64_t rows_a_block = (n + row_blocks - 1) / row_blocks;
    return {stripes, rows_a_block == 0 ? 0 : (n + rows_a_block - 1) / rows_a_block, rows_a_block};
  }
};

// The sums of a thread's columns over the threads that have the same ones, written to partials[row block, cols]. Called
// by all kStripeBlock threads of a block.
template <typename T>
__device__ void LeaveStripeSums(const float (&sum)[kWidth<T>], int64_t row_block, int64_t column, int64_t cols,
                                float* partials) {
  constexpr int kColumns = kStripePacks * kWidth<T>;
  constexpr int kWarps = kStripeBlock / 32;
  __shared__ float sums[kWarps][kColumns];
  const int lane = threadIdx.x % kStripePacks;
#pragma unroll
  for (int e = 0; e < kWidth<T>; ++e) {
    float value = sum[e];  // A warp has four rows of the stripe.
    value += __shfl_xor_sync(~0u, value, 8);
    value += __shfl_xor_sync(~0u, value, 16);
    if (threadIdx.x % 32 < kStripePacks) sums[threadIdx.x / 32][lane * kWidth<T> + e] = value;
  }
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= kColumns) return;
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += sums[warp][mine];
  const int64_t out = column - lane * kWidth<T> + mine;
  if (out < cols) partials[row_block * cols + out] = total;
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_COLUMN_SUMS_CUH_
