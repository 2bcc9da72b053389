#include "base/check.h"
#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/column_sums.cuh"
#include "dense/gelu.h"
#include "dense/gelu_gpu.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr int kUnroll = 2;  // Packs of a thread of the forward kernel, kBlock apart.

// 1 / (1 + exp(-2 u)), see dense/gelu.h: by the hardware's exponential and quotient, which are wrong by a few units in
// the last place of a float. Beyond 2^126 the quotient is 0, as it should be.
__device__ float FastShare(float x) { return __fdividef(1.0f, 1 + __expf(-kGeluScale * (x + kGeluCubic * x * x * x))); }

template <typename T>
__device__ float Gelu(float x) {
  if constexpr (sizeof(T) == 4) return GeluOf(x);
  return x * FastShare(x);
}

template <typename T>
__device__ float GeluDerivative(float x) {
  if constexpr (sizeof(T) == 4) return GeluDerivativeOf(x);
  const float share = FastShare(x);
  return share * (1 + x * (1 - share) * kGeluScale * (1 + 3 * kGeluCubic * x * x));
}

// A thread takes kUnroll packs. Bytes moved: x read, y written. Bound by HBM.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kBlock) GeluForwardKernel(DeviceMatrix x, DeviceMatrix y) {
  const int64_t packs_a_row = PacksOf<T>(x.cols);
  const int64_t packs = packs_a_row * x.rows;
  int64_t rows[kUnroll], columns[kUnroll];
  RowPack<T> values[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t pack = (int64_t{blockIdx.x} * kUnroll + u) * kBlock + threadIdx.x;
    rows[u] = pack / packs_a_row;
    columns[u] = (pack - rows[u] * packs_a_row) * kWidth<T>;
    if (pack >= packs) {
      rows[u] = -1;
    } else {
      values[u] = ReadPack<kWhole>(ElementAt<const T>(x, rows[u], columns[u]), x.cols - columns[u]);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (rows[u] < 0) continue;
    float result[kWidth<T>];
#pragma unroll
    for (int e = 0; e < kWidth<T>; ++e) result[e] = Gelu<T>(values[u].At(e));
    WritePack<kWhole>(ElementAt<T>(y, rows[u], columns[u]), x.cols - columns[u], RowPack<T>::Of(result));
  }
}

constexpr int kRowsAtATime = 2;  // Of a thread of the backward kernel, whose reads are in flight.

// Threads as in ColumnSumsKernel (dense/column_sums.cu). partials null: no sums are wanted. Bytes moved: x and
// gradients read, gradients written, and 4 a column and row block. Bound by HBM.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kStripeBlock, 4)
    GeluBackwardKernel(DeviceMatrix x, DeviceMatrix gradients, StripeGrid grid, float* partials) {
  const int64_t stripe = blockIdx.x % grid.stripes, row_block = blockIdx.x / grid.stripes;
  const int64_t column = (stripe * kStripePacks + threadIdx.x % kStripePacks) * kWidth<T>;
  const int64_t left = x.cols - column;
  float sum[kWidth<T>] = {};
  if (left > 0) {
    const int64_t end = min((row_block + 1) * grid.rows_a_block, x.rows);
    for (int64_t row = row_block * grid.rows_a_block + threadIdx.x / kStripePacks; row < end;
         row += kRowsAtATime * kStripeRows) {
      RowPack<T> inputs[kRowsAtATime], values[kRowsAtATime];
#pragma unroll
      for (int i = 0; i < kRowsAtATime; ++i) {
        const int64_t r = min(row + i * kStripeRows, end - 1);
        inputs[i] = ReadPack<kWhole>(ElementAt<const T>(x, r, column), left);
        values[i] = ReadPack<kWhole>(ElementAt<const T>(gradients, r, column), left);
      }
#pragma unroll
      for (int i = 0; i < kRowsAtATime; ++i) {
        const int64_t r = row + i * kStripeRows;
        if (r >= end) break;
        float result[kWidth<T>];
#pragma unroll
        for (int e = 0; e < kWidth<T>; ++e) result[e] = values[i].At(e) * GeluDerivative<T>(inputs[i].At(e));
        values[i] = RowPack<T>::Of(result);
#pragma unroll
        for (int e = 0; e < kWidth<T>; ++e) sum[e] += values[i].At(e);
        WritePack<kWhole>(ElementAt<T>(gradients, r, column), left, values[i]);
      }
    }
  }
  if (partials != nullptr) LeaveStripeSums<T>(sum, row_block, column, x.cols, partials);
}

}  // namespace

void GeluForwardGpu(Precision precision, const DeviceMatrix& x, const DeviceMatrix& y, const Stream& stream) {
  CHECK(x.rows == y.rows && x.cols == y.cols);
  WithElementType(precision, [&]<typename T>(T) {
    const int64_t packs = PacksOf<T>(x.cols) * x.rows;
    const bool whole = HasWholePacks<T>(x) && HasWholePacks<T>(y);
    const Operation operation(
        [&] { return OperationCost{.name = "gelu", .bytes = 2.0 * sizeof(T) * x.rows * x.cols}; });
    Launch(whole ? GeluForwardKernel<T, true> : GeluForwardKernel<T, false>,
           (packs + kUnroll * kBlock - 1) / (kUnroll * kBlock), kBlock, stream, x, y);
  });
}

void GeluBackwardGpu(Precision precision, const DeviceMatrix& x, const DeviceMatrix& gradients, float* bias_gradients,
                     float* workspace, const Stream& stream) {
  CHECK(x.rows == gradients.rows && x.cols == gradients.cols);
  WithElementType(precision, [&]<typename T>(T) {
    const StripeGrid grid = StripeGrid::Of(x.rows, x.cols, kStripePacks * kWidth<T>);
    const bool whole = HasWholePacks<T>(x) && HasWholePacks<T>(gradients);
    const bool sums = bias_gradients != nullptr;
    const Operation operation([&] {
      return OperationCost{.name = sums ? "gelu backward, sums for the bias" : "gelu backward",
                           .bytes = x.cols * (3.0 * sizeof(T) * x.rows + (sums ? 4.0 * grid.row_blocks : 0))};
    });
    Launch(whole ? GeluBackwardKernel<T, true> : GeluBackwardKernel<T, false>, grid.stripes * grid.row_blocks,
           kStripeBlock, stream, x, gradients, grid, sums ? workspace : nullptr);
    if (!sums) return;
    AddPartialSums({.values = workspace, .rows = grid.row_blocks, .to = bias_gradients, .cols = x.cols}, stream);
  });
}

}  // namespace sparrow
