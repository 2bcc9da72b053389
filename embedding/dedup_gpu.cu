#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_scan.cuh>
#include <type_traits>

#include "base/cuda/device_buffer.h"
#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "embedding/dedup_gpu.h"
#include "embedding/row_name.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr uint32_t kFree = 0xffffffff;

int64_t BlocksOf(int64_t threads) { return (threads + kBlock - 1) / kBlock; }

// The parts of a workspace.
struct Workspace {
  uint32_t* firsts;  // [mask + 1], open addressing: where a name appears first among the names given, or kFree.
  uint32_t mask;
  uint32_t* places;  // [names]: of each, its place in firsts.
  uint32_t* ranks;   // [names]: how many unique names appear before it.
  char* scan;        // What the scan needs: the rest.
  size_t bytes;      // Of all but `scan`.
};

Workspace Divide(uint32_t names, void* memory) {
  Workspace w = {};
  const auto take = [&](auto** part, size_t items) {
    *part = reinterpret_cast<std::remove_reference_t<decltype(*part)>>(static_cast<char*>(memory) + w.bytes);
    w.bytes += (items * sizeof(**part) + 255) / 256 * 256;
  };
  w.mask = static_cast<uint32_t>(UniquePlaces(names) - 1);
  take(&w.firsts, size_t{w.mask} + 1);
  take(&w.places, names);
  take(&w.ranks, names);
  take(&w.scan, 0);
  return w;
}

// For the scan: 1 for a name that did not appear before.
struct IsFirst {
  DeviceNames names;
  const uint32_t* firsts;
  const uint32_t* places;
  __device__ uint32_t operator()(uint32_t i) const { return i < CountOf(names) && firsts[places[i]] == i ? 1 : 0; }
};

cudaError_t Ranks(const DeviceNames& names, const Workspace& w, void* memory, size_t* bytes, cudaStream_t stream) {
  const auto firsts =
      thrust::make_transform_iterator(thrust::make_counting_iterator(uint32_t{0}), IsFirst{names, w.firsts, w.places});
  return cub::DeviceScan::ExclusiveSum(memory, *bytes, firsts, w.ranks, names.max, stream);
}

// One thread a name: finds the place of its name and lowers what stands there to its own position, so that the order in
// which threads run does not show. A place is read before it is written, so that of a frequent name few threads wait
// for each other. Bytes moved: 16 in and 4 out, and a random 4 (the place) and 16 (the name there), mostly in L2, where
// 1.7 M names and their places fit. Bound by the latency of those, which depend on each other.
__global__ void __launch_bounds__(kBlock) FirstKernel(DeviceNames names, Workspace w) {
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= CountOf(names)) return;
  const uint32_t own = static_cast<uint32_t>(i);
  const RowName name = Load(names.data + i);
  uint32_t place = static_cast<uint32_t>(NameBits(name)) & w.mask;
  for (;; place = (place + 1) & w.mask) {
    uint32_t first = __ldcg(w.firsts + place);
    if (first == kFree) first = atomicCAS(w.firsts + place, kFree, own);
    if (first == kFree) break;
    if (Load(names.data + first) == name) {
      if (own < first) atomicMin(w.firsts + place, own);
      break;
    }
  }
  w.places[i] = place;
}

// One thread a name. Bytes moved: 4 (its place) in, a random 8 (first, rank), 4 out, and 32 a unique name. Bound by HBM
// and L2.
__global__ void __launch_bounds__(kBlock) UniqueKernel(DeviceNames names, Workspace w, DeviceUnique unique) {
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= names.max) return;
  const bool is_name = i < CountOf(names);
  const uint32_t first = is_name ? w.firsts[w.places[i]] : kFree;
  const bool is_first = first == i;
  if (i == names.max - 1) *unique.count = w.ranks[i] + (is_first ? 1 : 0);
  if (!is_name) return;
  const uint32_t rank = w.ranks[first];
  unique.index[i] = rank;
  if (is_first) unique.names[rank] = Load(names.data + i);
}

}  // namespace

size_t UniqueWorkspaceBytes(uint32_t names) {
  CHECK(names < 1u << 31) << names << " names";
  const Workspace w = Divide(names, nullptr);
  size_t scan_bytes = 0;
  CHECK_CUDA(Ranks({nullptr, names, nullptr}, w, nullptr, &scan_bytes, nullptr));
  return w.bytes + scan_bytes;
}

void UniqueNamesGpu(const DeviceNames& names, const DeviceUnique& unique, const DeviceWorkspace& workspace,
                    const Stream& queue) {
  CHECK(names.max < 1u << 31) << names.max << " names";
  if (names.max == 0) return internal::FillDevice(unique.count, 0, sizeof(*unique.count), queue);
  const Workspace w = Divide(names.max, workspace.data);
  CHECK(workspace.bytes >= w.bytes) << "a workspace of " << workspace.bytes << " bytes";
  size_t scan_bytes = workspace.bytes - w.bytes;
  internal::FillDevice(w.firsts, 0xff, (size_t{w.mask} + 1) * sizeof(*w.firsts), queue);
  const double n = names.max;
  {
    const Operation operation([&] { return OperationCost{.name = "unique names, first", .bytes = 40 * n}; });
    Launch(FirstKernel, BlocksOf(names.max), kBlock, queue, names, w);
  }
  {
    const Operation operation([&] { return OperationCost{.name = "unique names, scan", .bytes = 12 * n}; });
    CHECK_CUDA(Ranks(names, w, w.scan, &scan_bytes, queue.get()));
  }
  const Operation operation(
      [&] { return OperationCost{.name = "unique names", .bytes = 16 * n, .row_bytes = 32, .rows_max = n}; });
  Launch(UniqueKernel, BlocksOf(names.max), kBlock, queue, names, w, unique);
}

}  // namespace sparrow
