#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/column_sums.cuh"
#include "dense/column_sums.h"

namespace sparrow {
namespace {

constexpr int kRowsAtATime = 4;  // Of a thread, whose reads are in flight.

// Lane l of 8 owns a pack of the stripe's columns, and the 32 threads with that lane take every 32nd row. Consecutive
// blocks take neighbouring stripes of the same rows. Bytes moved: the matrix, read, and 4 a column and row block. Bound
// by HBM.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kStripeBlock, 4)
    ColumnSumsKernel(DeviceMatrix values, StripeGrid grid, float* __restrict__ partials) {
  const int64_t stripe = blockIdx.x % grid.stripes, row_block = blockIdx.x / grid.stripes;
  const int64_t column = (stripe * kStripePacks + threadIdx.x % kStripePacks) * kWidth<T>;
  float sum[kWidth<T>] = {};
  if (column < values.cols) {
    const int64_t end = min((row_block + 1) * grid.rows_a_block, values.rows);
    for (int64_t row = row_block * grid.rows_a_block + threadIdx.x / kStripePacks; row < end;
         row += kRowsAtATime * kStripeRows) {
      RowPack<T> packs[kRowsAtATime];
#pragma unroll
      for (int i = 0; i < kRowsAtATime; ++i) {
        const int64_t r = row + i * kStripeRows;
        packs[i] = ReadPack<kWhole>(ElementAt<const T>(values, min(r, end - 1), column), values.cols - column);
      }
#pragma unroll
      for (int i = 0; i < kRowsAtATime; ++i) {
        if (row + i * kStripeRows >= end) break;
#pragma unroll
        for (int e = 0; e < kWidth<T>; ++e) sum[e] += packs[i].At(e);
      }
    }
  }
  LeaveStripeSums<T>(sum, row_block, column, values.cols, partials);
}

constexpr int kSumBlock = 1024;

// A block 32 columns, its warp i rows i, i + 32, ... Bytes moved: 4 an element, and 8 a column; in L2. Bound by
// latency.
__global__ void __launch_bounds__(kSumBlock) PartialSumsKernel(PartialSums sums) {
  __shared__ double warps[32][33];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t pitch = sums.cols + sums.second_cols;
  const int64_t column = int64_t{blockIdx.x} * 32 + lane;
  WaitForPrevious();
  LetNextStart();
  double sum = 0;
  if (column < pitch) {
#pragma unroll 8
    for (int64_t i = warp; i < sums.rows; i += 32) sum += sums.values[i * pitch + column];
  }
  warps[warp][lane] = sum;
  __syncthreads();
  sum = warps[lane][warp];  // Warp i adds what the warps have of column i.
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(~0u, sum, distance);
  const int64_t mine = int64_t{blockIdx.x} * 32 + warp;
  if (lane != 0 || mine >= pitch) return;
  float* const to = mine < sums.cols ? sums.to + mine : sums.second + (mine - sums.cols);
  *to = static_cast<float>(*to + sum);
}

}  // namespace

void AddPartialSums(const PartialSums& sums, const Stream& stream) {
  if (sums.rows == 0) return;
  const int64_t cols = sums.cols + sums.second_cols;
  const Operation operation(
      [&] { return OperationCost{.name = "sums of partial sums", .bytes = 4.0 * (sums.rows + 2) * cols}; });
  LaunchEarly(PartialSumsKernel, (cols + 31) / 32, kSumBlock, stream, sums);
}

size_t ColumnSumsWorkspaceFloats(int64_t n, int64_t cols) {
  // 16-bit numbers have the fewest stripes, and so the most blocks of rows.
  return static_cast<size_t>(StripeGrid::Of(n, cols, kStripePacks * kWidth<uint16_t>).row_blocks * cols);
}

void ColumnSumsAddGpu(Precision precision, const DeviceMatrix& values, float* sums, float* workspace,
                      const Stream& stream) {
  WithElementType(precision, [&]<typename T>(T) {
    const StripeGrid grid = StripeGrid::Of(values.rows, values.cols, kStripePacks * kWidth<T>);
    const auto kernel = HasWholePacks<T>(values) ? ColumnSumsKernel<T, true> : ColumnSumsKernel<T, false>;
    const Operation operation([&] {
      return OperationCost{.name = "sums of columns",
                           .bytes = 1.0 * values.cols * (sizeof(T) * values.rows + 4.0 * grid.row_blocks)};
    });
    Launch(kernel, grid.stripes * grid.row_blocks, kStripeBlock, stream, values, grid, workspace);
    AddPartialSums({.values = workspace, .rows = grid.row_blocks, .to = sums, .cols = values.cols}, stream);
  });
}

}  // namespace sparrow
