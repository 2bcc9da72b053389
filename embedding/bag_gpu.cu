#include <algorithm>
#include <bit>

#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "embedding/bag_gpu.h"
#include "embedding/elements.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr uint32_t kBatch = 8;           // Rows that a group has under way together.
constexpr int64_t kBagsMax = 8;          // A group's.
constexpr int64_t kWarpsAtLeast = 8448;  // 64 for each SM of an H200, before a group takes more bags than one.

struct BagsArguments {
  DeviceBags bags;
  DeviceRows rows;
  DevicePooled output;
  uint32_t bags_of_group;
  bool in_fours;  // output.InFours(dim).
};

// Where a group is in its bags [.., last).
struct Place {
  uint32_t bag;
  uint32_t last;
  uint32_t feature;
  uint32_t sample;
  uint32_t end;  // Where the bag's look-ups end.
};

// As embedding/bag_cpu.cc BagScale; weight_sum: of the bag's weights.
__device__ float BagScale(const DeviceBags& bags, const Place& at, double weight_sum) {
  if (bags.mean == nullptr || bags.mean[at.feature] == 0) return 1;
  const double divisor = bags.weights != nullptr ? weight_sum : at.end - bags.offsets[at.bag];
  return divisor == 0 ? 0 : static_cast<float>(1 / divisor);
}

template <ElementType kType>
__device__ void StorePooled(const BagsArguments& a, const Place& at, uint32_t column, const float* values /*[4]*/) {
  using Element = Packed<kType, 1>;
  Element* to = static_cast<Element*>(a.output.values) + uint64_t{at.sample} * a.output.stride +
                a.output.columns[at.feature] + column;
  if (a.in_fours) {
    *reinterpret_cast<Packed<kType, 4>*>(to) = Pack<kType, 4>(values);
    return;
  }
#pragma unroll
  for (uint32_t e = 0; e < 4; ++e) {
    if (column + e < a.rows.dim) to[e] = Pack<kType, 1>(values + e);
  }
}

// Columns column ... column + 4 of the bags from `at` on.
template <ElementType kType, bool kWeighted>
__device__ void PoolBags(const BagsArguments& a, Place at, uint32_t column) {
  const char* rows = a.rows.data + uint64_t{4} * column;
  const uint32_t lookups_end = a.bags.offsets[at.last];
  float sum[4] = {};
  double weight_sum = 0;
  const auto finish = [&] {
    const float scale = BagScale(a.bags, at, weight_sum);
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) sum[e] *= scale;
    StorePooled<kType>(a, at, column, sum);
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) sum[e] = 0;
    weight_sum = 0;
    ++at.bag;
    at.end = a.bags.offsets[min(at.bag + 1, at.last)];
    if (++at.sample == a.bags.samples) {
      at.sample = 0;
      ++at.feature;
    }
  };
  for (uint32_t base = a.bags.offsets[at.bag]; base < lookups_end; base += kBatch) {
    const uint32_t count = lookups_end - base;
    float4 values[kBatch];
    float weights[kWeighted ? kBatch : 1];
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      values[u] = {};
      if (u >= count) continue;
      values[u] = *reinterpret_cast<const float4*>(rows + a.bags.index[base + u] * a.rows.slot_bytes);
      if constexpr (kWeighted) weights[u] = a.bags.weights[base + u];
    }
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      if (u >= count) break;
      while (base + u == at.end) finish();
      const float* row = reinterpret_cast<const float*>(&values[u]);
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) sum[e] += kWeighted ? weights[u] * row[e] : row[e];
      if constexpr (kWeighted) weight_sum += weights[u];
    }
  }
  while (at.bag < at.last) finish();
}

// One group of kLanes threads takes bags_of_group bags that follow each other, and goes through their look-ups as one
// sequence, kBatch at a time, so that short bags too have several rows under way; where a bag ends it is written. Lane
// l owns columns 4 l ... 4 l + 3, then those 4 * kLanes further on, so a row is read in consecutive 16-byte pieces
// (behind dim lies what pads a slot) and each output is written once. Bags of one feature lie side by side, so the
// groups of a warp and the warps of a block have bags of like sizes; blocks in plenty level out those of features.
//
// Bytes moved: dim * 4 a look-up (its row), 4 for its index and 4 for a weight; dim elements a bag and 4 for its
// offset. Bound by HBM.
template <ElementType kType, bool kWeighted, int kLanes>
__global__ void __launch_bounds__(kBlock, kWeighted ? 3 : 4) BagsForwardKernel(BagsArguments a) {
  const int64_t group = (int64_t{blockIdx.x} * kBlock + threadIdx.x) / kLanes;
  const int64_t first = group * a.bags_of_group;
  const int64_t rows = a.bags.rows();
  if (first >= rows) return;
  Place at;
  at.bag = static_cast<uint32_t>(first);
  at.last = static_cast<uint32_t>(min(first + a.bags_of_group, rows));
  at.feature = at.bag / a.bags.samples;
  at.sample = at.bag - at.feature * a.bags.samples;
  at.end = a.bags.offsets[at.bag + 1];
  for (uint32_t column = threadIdx.x % kLanes * 4; column < a.rows.dim; column += kLanes * 4) {
    PoolBags<kType, kWeighted>(a, at, column);
  }
}

// How many bags a group takes. Short ones: as many as have a batch of look-ups or two. Long ones: few, so that groups
// end together; measured with the bags of DLRM-DCNv2, whose lengths are 1 to 100: 1 for a group of 4 lanes, 4 for 32.
uint32_t BagsOfGroup(const DeviceBags& bags, int64_t lanes) {
  const int64_t least = std::max<int64_t>(1, lanes / 8);
  int64_t wanted = least;
  if (bags.lookups > 0) wanted = std::clamp(2 * kBatch * bags.rows() / bags.lookups, least, kBagsMax);
  const int64_t most = bags.rows() * lanes / 32 / kWarpsAtLeast;
  return static_cast<uint32_t>(std::clamp<int64_t>(most, 1, wanted));
}

template <ElementType kType, int kLanes>
void LaunchOf(BagsArguments a, const Stream& queue) {
  a.bags_of_group = BagsOfGroup(a.bags, kLanes);
  const int64_t groups = (a.bags.rows() + a.bags_of_group - 1) / a.bags_of_group;
  const int64_t grid = (groups * kLanes + kBlock - 1) / kBlock;
  if (a.bags.weights != nullptr) return Launch(BagsForwardKernel<kType, true, kLanes>, grid, kBlock, queue, a);
  Launch(BagsForwardKernel<kType, false, kLanes>, grid, kBlock, queue, a);
}

template <ElementType kType>
void LaunchForLanes(const BagsArguments& a, const Stream& queue) {
  switch (std::min(32u, std::bit_ceil((a.rows.dim + 3) / 4))) {
    case 1:
      return LaunchOf<kType, 1>(a, queue);
    case 2:
      return LaunchOf<kType, 2>(a, queue);
    case 4:
      return LaunchOf<kType, 4>(a, queue);
    case 8:
      return LaunchOf<kType, 8>(a, queue);
    case 16:
      return LaunchOf<kType, 16>(a, queue);
    default:
      return LaunchOf<kType, 32>(a, queue);
  }
}

}  // namespace

void BagsForwardGpu(const DeviceBags& bags, const DeviceRows& rows, const DevicePooled& output, const Stream& queue) {
  if (bags.rows() == 0) return;
  CHECK(bags.rows() <= INT32_MAX) << bags.rows() << " bags";
  CHECK(rows.dim >= 1 && rows.slot_bytes >= uint64_t{4} * rows.dim) << "dim " << rows.dim;
  CHECK(rows.slot_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(rows.data) % 16 == 0) << "rows must lie at 16 bytes";
  const Operation operation([&] {
    const double lookup_bytes = 4 * rows.dim + 4 + (bags.weights == nullptr ? 0 : 4);
    const double bag_bytes = ElementBytes(output.type) * rows.dim + 4;
    return OperationCost{.name = "pooling of dim " + std::to_string(rows.dim),
                         .bytes = lookup_bytes * bags.lookups + bag_bytes * bags.rows()};
  });
  const BagsArguments arguments{bags, rows, output, 1, output.InFours(rows.dim)};
  switch (output.type) {
    case ElementType::kFloat32:
      return LaunchForLanes<ElementType::kFloat32>(arguments, queue);
    case ElementType::kBfloat16:
      return LaunchForLanes<ElementType::kBfloat16>(arguments, queue);
    case ElementType::kFloat16:
      return LaunchForLanes<ElementType::kFloat16>(arguments, queue);
  }
}

}  // namespace sparrow
