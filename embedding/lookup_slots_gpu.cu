#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "embedding/lookup_slots_gpu.h"
#include "embedding/row_cache.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;

int64_t BlocksOf(uint32_t threads) { return (int64_t{threads} + kBlock - 1) / kBlock; }

// One thread a look-up, which finds by halving the last feature whose look-ups begin at or before it. Bytes moved: 8 in
// and 16 out; the beginnings lie in L1. Bound by HBM.
__global__ void __launch_bounds__(kBlock) NameKernel(DeviceKeys keys, RowName* names) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= keys.lookups) return;
  uint32_t feature = 0;
  for (uint32_t end = keys.features; end - feature > 1;) {
    const uint32_t middle = feature + (end - feature) / 2;
    if (keys.offsets[uint64_t{middle} * keys.samples] <= i) {
      feature = middle;
    } else {
      end = middle;
    }
  }
  const uint64_t key = keys.keys[i];
  *reinterpret_cast<uint4*>(names + i) =
      make_uint4(static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), keys.tables[feature], 0);
}

// One thread a missing name. Bytes moved: 8 in, 8 out, 4 of them anywhere in the slots of the batch, which lie in L2.
// Bound by L2.
__global__ void __launch_bounds__(kBlock) PlaceMissingKernel(const uint32_t* positions, uint32_t missing,
                                                             uint32_t first_beside, uint32_t* given, uint32_t* slots) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= missing) return;
  uint32_t slot = given[i];
  if (slot == kNoSlot) given[i] = slot = first_beside + static_cast<uint32_t>(i);
  slots[positions[i]] = slot;
}

// One thread a look-up. Bytes moved: 12 a look-up, 4 of them anywhere in the slots of the batch, which lie in L2. Bound
// by L2.
__global__ void __launch_bounds__(kBlock)
    SlotsKernel(const uint32_t* index, uint32_t n, const uint32_t* slots, uint32_t* output) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < n) output[i] = slots[index[i]];
}

}  // namespace

void NameLookupsGpu(const DeviceKeys& keys, RowName* names, const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "names of look-ups", .bytes = 24.0 * keys.lookups}; });
  Launch(NameKernel, BlocksOf(keys.lookups), kBlock, queue, keys, names);
}

void PlaceMissingGpu(const uint32_t* positions, uint32_t missing, uint32_t first_beside, uint32_t* given,
                     uint32_t* slots, const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "places of missing rows", .bytes = 16.0 * missing}; });
  Launch(PlaceMissingKernel, BlocksOf(missing), kBlock, queue, positions, missing, first_beside, given, slots);
}

void SlotsOfLookupsGpu(const uint32_t* index, uint32_t lookups, const uint32_t* slots, uint32_t* output,
                       const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "slots of look-ups", .bytes = 12.0 * lookups}; });
  Launch(SlotsKernel, BlocksOf(lookups), kBlock, queue, index, lookups, slots, output);
}

}  // namespace sparrow
