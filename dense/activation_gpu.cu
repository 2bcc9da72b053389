#include "base/check.h"
#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/activation_gpu.h"
#include "dense/precision.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;

// One thread 16 bytes of a row. Bytes moved: what a, b and y hold, once, and the result, once. Bound
// by HBM.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    SumGradientsReluKernel(const T* y, int64_t y_cols, int64_t y_stride, const T* a, int64_t a_stride, const T* b,
                           int64_t b_stride, T* to, int64_t rows, int64_t cols, int64_t stride) {
  constexpr int kCount = kWidth<T>;
  const int64_t pieces = cols / kCount;
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= rows * pieces) return;
  const int64_t row = i / pieces;
  const int64_t col = i % pieces * kCount;
  Pack<T, kCount> sum = *reinterpret_cast<const Pack<T, kCount>*>(a + row * a_stride + col);
  if (b != nullptr) {
    const Pack<T, kCount> other = *reinterpret_cast<const Pack<T, kCount>*>(b + row * b_stride + col);
#pragma unroll
    for (int e = 0; e < kCount; ++e) sum.values[e] = FromFloat<T>(ToFloat(sum.values[e]) + ToFloat(other.values[e]));
  }
  if (y != nullptr) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if (col + e < y_cols && ToFloat(y[row * y_stride + col + e]) <= 0) sum.values[e] = FromFloat<T>(0.0f);
    }
  }
  Store(to + row * stride + col, sum);
}

}  // namespace

void SumGradientsReluGpu(Precision precision, const DeviceMatrix& y, const DeviceMatrix& a, const DeviceMatrix& b,
                         const DeviceMatrix& gradients, const Stream& stream) {
  CHECK(a.rows == gradients.rows && a.cols == gradients.cols && gradients.cols % kColumnsMultiple == 0);
  CHECK(b.data == nullptr || (b.rows == a.rows && b.cols == a.cols));
  CHECK(y.data == nullptr || (y.rows == a.rows && y.cols <= a.cols));
  WithElementType(precision, [&](auto element) {
    using T = decltype(element);
    const int64_t threads = gradients.rows * (gradients.cols / kWidth<T>);
    const double passes = 2 + (b.data != nullptr ? 1 : 0) + (y.data != nullptr ? 1 : 0);
    const Operation operation(
        [&] { return OperationCost{.name = "gradients of two uses", .bytes = passes * 16 * threads}; });
    Launch(SumGradientsReluKernel<T>, (threads + kBlock - 1) / kBlock, kBlock, stream, static_cast<const T*>(y.data),
           y.cols, y.stride, static_cast<const T*>(a.data), a.stride, static_cast<const T*>(b.data), b.stride,
           static_cast<T*>(gradients.data), gradients.rows, gradients.cols, gradients.stride);
  });
}

}  // namespace sparrow
