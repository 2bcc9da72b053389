#include "base/check.h"
#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/cast_gpu.h"
#include "dense/precision.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;

// One thread an element of `to`. Bytes moved: 4 an element of `from`, the type's size an element of `to`. Its matrices
// are a batch's dense inputs and a model's weights: a few megabytes, over within microseconds; bound by HBM.
template <typename From, typename T>
__global__ void __launch_bounds__(kBlock)
    CastKernel(const From* __restrict__ from, int64_t from_cols, int64_t from_stride, T* __restrict__ to, int64_t rows,
               int64_t cols, int64_t stride) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= rows * cols) return;
  const int64_t row = i / cols;
  const int64_t col = i % cols;
  to[row * stride + col] = FromFloat<T>(col < from_cols ? ToFloat(from[row * from_stride + col]) : 0.0f);
}

}  // namespace

void CastGpu(Precision precision, const float* from, int64_t cols, const DeviceMatrix& to, const Stream& stream) {
  CHECK(to.cols >= cols) << to.cols << " columns for " << cols;
  WithElementType(precision, [&](auto element) {
    using T = decltype(element);
    const Operation operation(
        [&] { return OperationCost{.name = "cast", .bytes = 1.0 * to.rows * (4 * cols + sizeof(T) * to.cols)}; });
    Launch(CastKernel<float, T>, (to.rows * to.cols + kBlock - 1) / kBlock, kBlock, stream, from, cols, cols,
           static_cast<T*>(to.data), to.rows, to.cols, to.stride);
  });
}

void CopyGpu(Precision precision, const DeviceMatrix& from, const DeviceMatrix& to, const Stream& stream) {
  CHECK(to.rows == from.rows && to.cols <= from.cols) << to.cols << " columns of " << from.cols;
  WithElementType(precision, [&](auto element) {
    using T = decltype(element);
    const Operation operation(
        [&] { return OperationCost{.name = "copy of a matrix", .bytes = 2.0 * sizeof(T) * to.rows * to.cols}; });
    Launch(CastKernel<T, T>, (to.rows * to.cols + kBlock - 1) / kBlock, kBlock, stream,
           static_cast<const T*>(from.data), from.cols, from.stride, static_cast<T*>(to.data), to.rows, to.cols,
           to.stride);
  });
}

}  // namespace sparrow
