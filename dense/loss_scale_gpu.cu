#include <algorithm>

#include "base/check.h"
#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/loss_scale_gpu.h"
#include "dense/precision.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr int kUnroll = 4;            // Packs a thread has on their way at a time.
constexpr int64_t kBlocksMax = 1056;  // 8 for each SM of an H200.

int64_t BlocksFor(int64_t threads) { return std::min((threads + kBlock - 1) / kBlock, kBlocksMax); }

// Thread t of the grid takes packs of kCount elements t, t + threads, ...; a row has `packs` of them, the last one
// short where cols is no multiple of kCount. A warp adds what its threads have found. Bytes moved: an element each,
// read. Bound by HBM.
template <typename T, int kCount>
__global__ void __launch_bounds__(kBlock)
    CountNotFiniteKernel(const T* __restrict__ values, uint32_t packs, uint32_t total, uint32_t cols, int64_t stride,
                         unsigned long long* count) {
  const uint32_t threads = gridDim.x * kBlock;
  const uint64_t first = blockIdx.x * kBlock + threadIdx.x;
  uint32_t found = 0;
  for (uint64_t i = first; i < total; i += uint64_t{kUnroll} * threads) {
    Pack<T, kCount> loaded[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint64_t at = i + static_cast<uint64_t>(u) * threads;
      if (at >= total) continue;
      const uint32_t row = static_cast<uint32_t>(at) / packs;
      const uint32_t col = (static_cast<uint32_t>(at) - row * packs) * kCount;
      const T* from = values + row * stride + col;
      if (col + kCount <= cols) {
        loaded[u] = *reinterpret_cast<const Pack<T, kCount>*>(from);
      } else {
#pragma unroll
        for (int e = 0; e < kCount; ++e) {
          if (col + e < cols) loaded[u].values[e] = from[e];
        }
      }
    }
#pragma unroll
    for (const Pack<T, kCount>& pack : loaded) {
#pragma unroll
      for (const T value : pack.values) found += isfinite(ToFloat(value)) ? 0 : 1;
    }
  }
  found = __reduce_add_sync(~0u, found);
  if (found != 0 && threadIdx.x % 32 == 0) atomicAdd(count, found);
}

// Thread t of the grid takes elements t, t + threads, ... Bytes moved: 8 an element. Bound by HBM.
__global__ void __launch_bounds__(kBlock) UnscaleKernel(float* values, int64_t n, const float* scale) {
  const float factor = 1 / *scale;
  const int64_t threads = int64_t{gridDim.x} * kBlock;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n; i += threads) values[i] *= factor;
}

template <typename T, int kCount>
void Count(const DeviceMatrix& values, uint64_t* count, const Stream& stream) {
  const int64_t packs = (values.cols + kCount - 1) / kCount;
  const int64_t total = values.rows * packs;
  CHECK_LT(total, int64_t{1} << 32);
  const Operation operation([&] {
    return OperationCost{.name = "gradients that are not finite", .bytes = 1.0 * sizeof(T) * values.rows * values.cols};
  });
  Launch(CountNotFiniteKernel<T, kCount>, BlocksFor((total + kUnroll - 1) / kUnroll), kBlock, stream,
         static_cast<const T*>(values.data), packs, total, values.cols, values.stride,
         reinterpret_cast<unsigned long long*>(count));
}

}  // namespace

void CountNotFiniteGpu(const DeviceMatrix& values, Precision precision, uint64_t* count, const Stream& stream) {
  WithElementType(precision, [&](auto element) {
    using T = decltype(element);
    if (HasAlignedRows<T>(values)) {
      Count<T, kWidth<T>>(values, count, stream);
    } else {
      Count<T, 1>(values, count, stream);
    }
  });
}

void UnscaleGpu(float* values, int64_t n, const float* scale, const Stream& stream) {
  const Operation operation([&] { return OperationCost{.name = "unscaling of gradients", .bytes = 8.0 * n}; });
  Launch(UnscaleKernel, BlocksFor(n), kBlock, stream, values, n, scale);
}

}  // namespace sparrow
