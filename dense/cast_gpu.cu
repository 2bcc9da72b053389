#include "base/check.h"
#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/cast_gpu.h"
#include "dense/precision.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr int kPack = 4;    // Consecutive columns of a thread,
constexpr int kUnroll = 2;  // and packs, kBlock apart.

// A thread takes kUnroll packs of a row of `to`; consecutive threads go along a row and then to the next one. Bytes
// moved: the size of From an element of `from`, of T an element of `to`. Bound by HBM; a batch's dense inputs and a
// model's weights are a few megabytes, over within microseconds. kWideFrom, kWideTo: packs are read or written whole.
template <typename From, typename T, bool kWideFrom, bool kWideTo>
__global__ void __launch_bounds__(kBlock)
    CastKernel(const From* __restrict__ from, int64_t from_cols, int64_t from_stride, T* __restrict__ to, int64_t cols,
               int64_t stride, uint32_t packs_a_row, uint32_t packs) {
  LetNextStart();  // This kernel is not launched early, so all before it has ended.
  Pack<From, kPack> values[kUnroll];
  uint32_t rows[kUnroll], columns[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t pack = blockIdx.x * (kBlock * kUnroll) + u * kBlock + threadIdx.x;
    rows[u] = pack / packs_a_row;
    columns[u] = pack < packs ? (pack - rows[u] * packs_a_row) * kPack : UINT32_MAX;
    values[u] = {};
    if (columns[u] >= from_cols) continue;
    const From* const at = from + rows[u] * from_stride + columns[u];
    if constexpr (kWideFrom) {
      values[u] = *reinterpret_cast<const Pack<From, kPack>*>(at);
    } else {
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        if (columns[u] + e < from_cols) values[u].values[e] = at[e];
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (columns[u] >= cols) continue;
    T* const at = to + rows[u] * stride + columns[u];
    Pack<T, kPack> result;
#pragma unroll
    for (int e = 0; e < kPack; ++e) result.values[e] = FromFloat<T>(ToFloat(values[u].values[e]));
    if constexpr (kWideTo) {
      Store(at, result);
    } else {
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        if (columns[u] + e < cols) at[e] = result.values[e];
      }
    }
  }
}

// Whether each pack of a row lies whole in it, at a multiple of its size.
template <typename T>
bool HasWholePacks(const void* data, int64_t cols, int64_t stride) {
  return cols % kPack == 0 && stride % kPack == 0 && reinterpret_cast<uintptr_t>(data) % (kPack * sizeof(T)) == 0;
}

template <typename From, typename T>
void LaunchCast(const From* from, int64_t from_cols, int64_t from_stride, const DeviceMatrix& to,
                const Stream& stream) {
  const int64_t packs_a_row = (to.cols + kPack - 1) / kPack;
  const int64_t packs = to.rows * packs_a_row;
  CHECK_LE(packs, int64_t{UINT32_MAX} - kBlock * kUnroll);  // Packs are numbered and divided in 32 bits.
  const bool wide_from = HasWholePacks<From>(from, from_cols, from_stride);
  const bool wide_to = HasWholePacks<T>(to.data, to.cols, to.stride);
  const auto kernel = wide_from ? (wide_to ? CastKernel<From, T, true, true> : CastKernel<From, T, true, false>)
                                : (wide_to ? CastKernel<From, T, false, true> : CastKernel<From, T, false, false>);
  Launch(kernel, (packs + kBlock * kUnroll - 1) / (kBlock * kUnroll), kBlock, stream, from, from_cols, from_stride,
         static_cast<T*>(to.data), to.cols, to.stride, static_cast<uint32_t>(packs_a_row),
         static_cast<uint32_t>(packs));
}

}  // namespace

void CastGpu(Precision precision, const float* from, int64_t cols, const DeviceMatrix& to, const Stream& stream) {
  CHECK(to.cols >= cols) << to.cols << " columns for " << cols;
  WithElementType(precision, [&](auto element) {
    using T = decltype(element);
    const Operation operation(
        [&] { return OperationCost{.name = "cast", .bytes = 1.0 * to.rows * (4 * cols + sizeof(T) * to.cols)}; });
    LaunchCast<float, T>(from, cols, cols, to, stream);
  });
}

void CopyGpu(Precision precision, const DeviceMatrix& from, const DeviceMatrix& to, const Stream& stream) {
  CHECK(to.rows == from.rows && to.cols <= from.cols) << to.cols << " columns of " << from.cols;
  WithElementType(precision, [&](auto element) {
    using T = decltype(element);
    const Operation operation(
        [&] { return OperationCost{.name = "copy of a matrix", .bytes = 2.0 * sizeof(T) * to.rows * to.cols}; });
    LaunchCast<T, T>(static_cast<const T*>(from.data), from.cols, from.stride, to, stream);
  });
}

}  // namespace sparrow
