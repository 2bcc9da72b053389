#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "embedding/sparse_update_gpu.h"
#include "embedding/sparse_update_workspace.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr uint32_t kEveryLane = 0xffffffff;

int SlotBits(uint32_t slots) { return std::bit_width(slots); }  // "None" is slots itself.

// As embedding/bag_cpu.cc BagScale.
__device__ float BagScale(const DeviceBags& bags, uint32_t bag, uint32_t begin, uint32_t end) {
  if (bags.mean == nullptr || begin == end || bags.mean[bag / bags.samples] == 0) return 1;
  double divisor = end - begin;
  if (bags.weights != nullptr) {
    divisor = 0;
    for (uint32_t j = begin; j < end; ++j) divisor += bags.weights[j];
  }
  return divisor == 0 ? 0 : static_cast<float>(1 / divisor);
}

// What the sort takes. One thread a bag finds its scale; then the warp goes through the look-ups of its 32 bags, which
// lie side by side, and each lane finds by halving to whose bag its look-up belongs. Bytes moved, a look-up: 4 in, 8
// out, and with factors 8 more out (and a weight in); 4 a bag. Bound by HBM, or by L2 where a batch fits.
__global__ void __launch_bounds__(kBlock) SourcesKernel(DeviceBags bags, SparseUpdateSize size, Workspace w) {
  const int64_t thread = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const uint32_t lane = threadIdx.x % 32;
  const int64_t rows = bags.rows();
  if (thread == 0) *w.heavy_rows = 0;
  if (thread < size.lookups && thread >= bags.offsets[rows]) {
    w.slots_in[thread] = size.slots;
    w.values_in[thread] = 0;
  }
  const int64_t first_bag = thread - lane;
  if (first_bag >= rows) return;
  const uint32_t begin = bags.offsets[min(thread, rows)];
  const uint32_t end = bags.offsets[min(thread + 1, rows)];
  const float scale = BagScale(bags, static_cast<uint32_t>(thread), begin, end);
  const uint32_t last = __shfl_sync(kEveryLane, end, 31);
  for (uint32_t base = __shfl_sync(kEveryLane, begin, 0); base < last; base += 32) {
    const uint32_t lookup = base + lane;
    uint32_t bag = 0;  // The last one that begins at or before the look-up.
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2) {
      if (__shfl_sync(kEveryLane, begin, bag + step) <= lookup) bag += step;
    }
    const float bag_scale = __shfl_sync(kEveryLane, scale, bag);
    if (lookup >= last) continue;
    const uint32_t source_bag = static_cast<uint32_t>(first_bag) + bag;
    w.slots_in[lookup] = bags.index[lookup];
    if (!HasFactors(bags)) {
      w.values_in[lookup] = source_bag;
    } else {
      w.values_in[lookup] = lookup;
      w.sources[lookup] = {source_bag, bags.weights != nullptr ? bags.weights[lookup] * bag_scale : bag_scale};
    }
  }
}

}  // namespace

size_t SparseUpdateWorkspaceBytes(const SparseUpdateSize& size) {
  CheckSize(size);
  const Workspace w = Divide(size, nullptr);
  size_t sort_bytes = 0;
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, w.slots_in, w.slots, w.values_in, w.values,
                                             size.lookups, 0, SlotBits(size.slots)));
  return w.bytes + sort_bytes;
}

void GroupLookupsGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DeviceWorkspace& workspace,
                     const Stream& queue) {
  CheckSize(size);
  CHECK(bags.rows() <= INT32_MAX) << bags.rows() << " bags";
  if (size.lookups == 0 || bags.rows() == 0) return;
  const Workspace w = Divide(size, workspace.data);
  CHECK(workspace.bytes > w.bytes) << "a workspace of " << workspace.bytes << " bytes";
  size_t sort_bytes = workspace.bytes - w.bytes;
  const int64_t threads = std::max<int64_t>(bags.rows(), size.lookups);
  {
    const Operation operation([&] {
      return OperationCost{
          .name = "sources of look-ups",
          .bytes = (12.0 + (HasFactors(bags) ? 8 : 0) + (bags.weights == nullptr ? 0 : 4)) * size.lookups +
                   4.0 * bags.rows()};
    });
    Launch(SourcesKernel, (threads + kBlock - 1) / kBlock, kBlock, queue, bags, size, w);
  }
  // Each look-up's slot and value in and out, once: how often the sort passes over them is its own.
  const Operation operation([&] { return OperationCost{.name = "sort of look-ups", .bytes = 16.0 * size.lookups}; });
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(w.sort, sort_bytes, w.slots_in, w.slots, w.values_in, w.values,
                                             size.lookups, 0, SlotBits(size.slots), queue.get()));
}

}  // namespace sparrow
