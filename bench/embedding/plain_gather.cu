#include "base/cuda/launch.cuh"
#include "bench/embedding/plain_gather.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr uint32_t kRows = 4;  // A warp's, under way together.

// One warp kRows rows; lane l copies 16 bytes at l, l + 32, ... of each. Bytes moved: 8 * dim a row and 4 for its
// index. Bound by HBM.
__global__ void __launch_bounds__(kBlock)
    GatherKernel(const uint32_t* index, uint32_t n, DeviceRows rows, float* output) {
  const uint32_t first = (blockIdx.x * kBlock + threadIdx.x) / 32 * kRows;
  const uint32_t vectors = rows.dim / 4;
  for (uint32_t v = threadIdx.x % 32; v < vectors; v += 32) {
    float4 values[kRows];
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
      if (first + i >= n) break;
      values[i] = reinterpret_cast<const float4*>(rows.data + index[first + i] * rows.slot_bytes)[v];
    }
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
      if (first + i < n) reinterpret_cast<float4*>(output)[uint64_t{first + i} * vectors + v] = values[i];
    }
  }
}

}  // namespace

void PlainGather(const uint32_t* index, uint32_t n, const DeviceRows& rows, float* output, const Stream& queue) {
  const int64_t warps = (int64_t{n} + kRows - 1) / kRows;
  Launch(GatherKernel, (warps * 32 + kBlock - 1) / kBlock, kBlock, queue, index, n, rows, output);
}

}  // namespace sparrow
