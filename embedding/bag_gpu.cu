#include <algorithm>
#include <bit>

#include "base/cuda/launch.cuh"
#include "embedding/bag_gpu.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;

struct BagArguments {
  DeviceBags bags;
  const float* rows;
  uint32_t dim;
  float* output;
  uint32_t stride;
  uint32_t column;
};

// One group of kLanes threads a bag (a warp holds 32 / kLanes bags); lane l owns vectors l, l + kLanes, ... of the row,
// so a row is read in consecutive 16-byte (Vector = float4) or 4-byte (float) pieces, and each output is written once.
// Bytes moved: dim * 4 a look-up (its row), 4 for its index, dim * 4 a bag. Bound by HBM.
template <typename Vector, int kLanes>
__global__ void __launch_bounds__(kBlock) BagForwardKernel(BagArguments a) {
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  const int64_t bag = (int64_t{blockIdx.x} * kBlock + threadIdx.x) / kLanes;
  const uint32_t lane = threadIdx.x % kLanes;
  if (bag >= a.bags.rows) return;
  const uint32_t begin = a.bags.offsets[bag];
  const uint32_t end = a.bags.offsets[bag + 1];

  float scale = 1.0f;
  if (a.bags.mean && end > begin) {
    float total = 0;
    for (uint32_t i = begin; i < end; ++i) total += a.bags.weights != nullptr ? a.bags.weights[i] : 1.0f;
    scale = total != 0.0f ? 1.0f / total : 0.0f;
  }
  const uint32_t vectors = a.dim / kWidth;
  Vector* out = reinterpret_cast<Vector*>(a.output + bag * a.stride + a.column);
  for (uint32_t v = lane; v < vectors; v += kLanes) {
    float sum[kWidth] = {};
    for (uint32_t i = begin; i < end; ++i) {
      const Vector value = reinterpret_cast<const Vector*>(a.rows + size_t{a.bags.index[i]} * a.dim)[v];
      const float weight = a.bags.weights != nullptr ? a.bags.weights[i] : 1.0f;
      const float* elements = reinterpret_cast<const float*>(&value);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] += weight * elements[e];
    }
    Vector result;
    float* elements = reinterpret_cast<float*>(&result);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) elements[e] = sum[e] * scale;
    out[v] = result;
  }
}

template <typename Vector>
void LaunchForLanes(const BagArguments& arguments, uint32_t lanes, const Stream& queue) {
  const int64_t threads = arguments.bags.rows * lanes;
  const int64_t grid = (threads + kBlock - 1) / kBlock;
  switch (lanes) {
    case 1:
      return Launch(BagForwardKernel<Vector, 1>, grid, kBlock, queue, arguments);
    case 2:
      return Launch(BagForwardKernel<Vector, 2>, grid, kBlock, queue, arguments);
    case 4:
      return Launch(BagForwardKernel<Vector, 4>, grid, kBlock, queue, arguments);
    case 8:
      return Launch(BagForwardKernel<Vector, 8>, grid, kBlock, queue, arguments);
    case 16:
      return Launch(BagForwardKernel<Vector, 16>, grid, kBlock, queue, arguments);
    default:
      return Launch(BagForwardKernel<Vector, 32>, grid, kBlock, queue, arguments);
  }
}

bool IsAligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

void BagForwardGpu(const DeviceBags& bags, const float* rows, uint32_t dim, float* output, uint32_t stride,
                   uint32_t column, const Stream& queue) {
  const BagArguments arguments{bags, rows, dim, output, stride, column};
  const bool wide = dim % 4 == 0 && stride % 4 == 0 && column % 4 == 0 && IsAligned16(rows) && IsAligned16(output);
  const uint32_t vectors = wide ? dim / 4 : dim;
  const uint32_t lanes = std::min(32u, std::bit_ceil(vectors));
  if (wide) {
    LaunchForLanes<float4>(arguments, lanes, queue);
  } else {
    LaunchForLanes<float>(arguments, lanes, queue);
  }
}

}  // namespace sparrow
