#include <initializer_list>

#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/cross_gpu.h"
#include "dense/precision.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;

// kCount consecutive elements of a row, or what is left of it.
template <typename T, int kCount>
__device__ Pack<T, kCount> Load(const DeviceMatrix& matrix, int64_t row, int64_t column) {
  const T* const from = static_cast<const T*>(matrix.data) + row * matrix.stride + column;
  if (column + kCount <= matrix.cols) return *reinterpret_cast<const Pack<T, kCount>*>(from);
  Pack<T, kCount> pack = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (column + i < matrix.cols) pack.values[i] = from[i];
  }
  return pack;
}

template <typename T, int kCount>
__device__ void StoreIn(const DeviceMatrix& matrix, int64_t row, int64_t column, const Pack<T, kCount>& pack) {
  T* const to = static_cast<T*>(matrix.data) + row * matrix.stride + column;
  if (column + kCount <= matrix.cols) return Store(to, pack);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (column + i < matrix.cols) to[i] = pack.values[i];
  }
}

// A thread takes kCount consecutive columns of a row, threads go along a row and then to the next one. Bytes moved, in
// elements: 3 read and 1 written. Bound by HBM.
template <typename T, int kCount>
__global__ void __launch_bounds__(kBlock)
    CrossCombineForwardKernel(DeviceMatrix x0, DeviceMatrix factor, DeviceMatrix x, DeviceMatrix y, uint32_t packs) {
  const uint32_t thread = blockIdx.x * kBlock + threadIdx.x;
  const uint32_t row = thread / packs;
  const uint32_t column = (thread - row * packs) * kCount;
  if (row >= y.rows) return;
  const auto a = Load<T, kCount>(x0, row, column);
  const auto b = Load<T, kCount>(factor, row, column);
  const auto c = Load<T, kCount>(x, row, column);
  Pack<T, kCount> result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    result.values[i] = FromFloat<T>(fmaf(ToFloat(a.values[i]), ToFloat(b.values[i]), ToFloat(c.values[i])));
  }
  StoreIn(y, row, column, result);
}

// As the forward kernel. Bytes moved, in elements: 3 read and 2 written; 1 more read where gradients are added. Bound
// by HBM.
template <typename T, int kCount, bool kFirst>
__global__ void __launch_bounds__(kBlock)
    CrossCombineBackwardKernel(DeviceMatrix y_gradients, DeviceMatrix x0, DeviceMatrix factor,
                               DeviceMatrix factor_gradients, DeviceMatrix x0_gradients, uint32_t packs) {
  const uint32_t thread = blockIdx.x * kBlock + threadIdx.x;
  const uint32_t row = thread / packs;
  const uint32_t column = (thread - row * packs) * kCount;
  if (row >= y_gradients.rows) return;
  const auto gradients = Load<T, kCount>(y_gradients, row, column);
  const auto a = Load<T, kCount>(x0, row, column);
  const auto b = Load<T, kCount>(factor, row, column);
  Pack<T, kCount> before = {};
  if constexpr (!kFirst) before = Load<T, kCount>(x0_gradients, row, column);
  Pack<T, kCount> by_factor, by_x0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float g = ToFloat(gradients.values[i]);
    by_factor.values[i] = FromFloat<T>(g * ToFloat(a.values[i]));
    const float product = g * ToFloat(b.values[i]);
    by_x0.values[i] = FromFloat<T>(kFirst ? product : product + ToFloat(before.values[i]));
  }
  StoreIn(factor_gradients, row, column, by_factor);
  StoreIn(x0_gradients, row, column, by_x0);
}

void CheckSameShape(std::initializer_list<const DeviceMatrix*> matrices) {
  for (const DeviceMatrix* matrix : matrices) {
    CHECK_EQ(matrix->rows, (*matrices.begin())->rows);
    CHECK_EQ(matrix->cols, (*matrices.begin())->cols);
    CHECK_GE(matrix->stride, matrix->cols);
  }
}

// Launches kernel(packs of a row, ...) with packs of 16 bytes where all rows are aligned for them, else of one element.
template <typename T, typename Wide, typename Narrow, typename... Arguments>
void LaunchByRows(Wide wide, Narrow narrow, std::initializer_list<const DeviceMatrix*> matrices, const Stream& stream,
                  Arguments... arguments) {
  const DeviceMatrix& first = **matrices.begin();
  bool aligned = true;
  for (const DeviceMatrix* matrix : matrices) aligned = aligned && HasAlignedRows<T>(*matrix);
  const int64_t count = aligned ? kWidth<T> : 1;
  const int64_t packs = (first.cols + count - 1) / count;
  const int64_t grid = (first.rows * packs + kBlock - 1) / kBlock;
  CHECK_LE(grid * kBlock, int64_t{UINT32_MAX});  // Threads are numbered and divided in 32 bits.
  Launch(aligned ? wide : narrow, grid, kBlock, stream, arguments..., static_cast<uint32_t>(packs));
}

}  // namespace

void CrossCombineForwardGpu(Precision precision, const DeviceMatrix& x0, const DeviceMatrix& factor,
                            const DeviceMatrix& x, const DeviceMatrix& y, const Stream& stream) {
  CheckSameShape({&y, &x0, &factor, &x});
  WithElementType(precision, [&]<typename T>(T) {
    const Operation operation(
        [&] { return OperationCost{.name = "cross forward", .bytes = 4.0 * sizeof(T) * y.rows * y.cols}; });
    LaunchByRows<T>(CrossCombineForwardKernel<T, kWidth<T>>, CrossCombineForwardKernel<T, 1>, {&y, &x0, &factor, &x},
                    stream, x0, factor, x, y);
  });
}

void CrossCombineBackwardGpu(Precision precision, const DeviceMatrix& y_gradients, const DeviceMatrix& x0,
                             const DeviceMatrix& factor, const DeviceMatrix& factor_gradients,
                             const DeviceMatrix& x0_gradients, bool first, const Stream& stream) {
  const auto matrices = {&y_gradients, &x0, &factor, &factor_gradients, &x0_gradients};
  CheckSameShape(matrices);
  WithElementType(precision, [&]<typename T>(T) {
    const auto wide =
        first ? CrossCombineBackwardKernel<T, kWidth<T>, true> : CrossCombineBackwardKernel<T, kWidth<T>, false>;
    const auto narrow = first ? CrossCombineBackwardKernel<T, 1, true> : CrossCombineBackwardKernel<T, 1, false>;
    const double elements = 1.0 * y_gradients.rows * y_gradients.cols;
    const Operation operation(
        [&] { return OperationCost{.name = "cross backward", .bytes = (first ? 5 : 6) * sizeof(T) * elements}; });
    LaunchByRows<T>(wide, narrow, matrices, stream, y_gradients, x0, factor, factor_gradients, x0_gradients);
  });
}

}  // namespace sparrow
