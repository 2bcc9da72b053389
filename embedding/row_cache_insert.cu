#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "base/cuda/operation.h"
#include "embedding/row_cache_device.cuh"

// Insert of the row cache. The names are sorted by bucket, because all names that want slots of one bucket must be seen
// together to give each its own, the same in every run (PlaceKernel); then the positions of what goes out are summed
// up, and records move (MoveKernel).

namespace sparrow {
namespace {

using namespace internal;  // NOLINT: the kernels' shared part.

constexpr uint32_t kEvicts = 1u << 31;  // In a plan: the slot holds a row that is evicted.
constexpr uint32_t kTile = 8;           // Sorted names whose buckets are one warp's in PlaceKernel.

// For the scan of plans: below, rows evicted; above, names refused.
struct PlanSum {
  DeviceNames names;
  const uint32_t* plan;
  __device__ uint64_t operator()(uint32_t i) const {
    if (i >= CountOf(names)) return 0;
    if (plan[i] == kNoSlot) return uint64_t{1} << 32;
    return plan[i] >> 31;
  }
};

int BucketBits(uint32_t buckets) { return std::max(1, static_cast<int>(std::bit_width(buckets))); }

// One thread a name. Bytes moved: 16 in, 12 out. Bound by HBM.
__global__ void __launch_bounds__(kBlock) BucketKernel(DeviceRowIndex index, DeviceNames names, Workspace w) {
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= names.max) return;
  const bool is_name = i < CountOf(names);
  w.buckets_in[i] = is_name ? CacheBucketOf(NameBits(Load(names.data + i)), index.buckets) : index.buckets;
  w.values_in[i] = static_cast<uint32_t>(i);
  w.plan[i] = kNoSlot;
}

struct InsertArguments {
  DeviceRowIndex index;
  DeviceNames names;
  const RowCacheStep* step;
  Workspace w;
  char* records;
  const char* new_records;
  uint32_t* slots;
  DeviceEvicted evicted;
  uint32_t row_vectors;
  uint32_t parts;
};

// Gives the sorted names [first, first + length), all of one bucket, the bucket's free slots in their order and
// then those of the lowest ranks, one after the other, and writes the names there; what was there goes to w.evicted.
// Lane l owns slots l, l + 32, ... of the bucket. Names behind the last slot that is not pinned get none.
__device__ void PlaceInBucket(const InsertArguments& a, uint32_t bucket, uint32_t first, uint32_t length,
                              uint8_t* free_slots /*[kBucketSlots]*/) {
  constexpr uint32_t kOwn = kBucketSlots / 32;
  const uint32_t lane = threadIdx.x % 32;
  const RowCacheStep step = *a.step;
  const uint32_t pinned_recency = PinnedRecency(step);
  const uint32_t kept_recency = KeptRecency(step);
  const uint32_t begin = bucket * kBucketSlots;
  uint32_t ranks[kOwn];
#pragma unroll
  for (uint32_t j = 0; j < kOwn; ++j) ranks[j] = a.index.entries[begin + j * 32 + lane].score;
  uint32_t free = 0;
#pragma unroll
  for (uint32_t j = 0; j < kOwn; ++j) {
    const bool is_free = ranks[j] == 0;
    const uint32_t others = __ballot_sync(kEveryLane, is_free);
    if (is_free) free_slots[free + __popc(others & ((1u << lane) - 1))] = static_cast<uint8_t>(j * 32 + lane);
    free += __popc(others);
    ranks[j] = is_free ? kNeverEvicted : EvictionRank(ranks[j], step.step, pinned_recency, kept_recency);
  }
  __syncwarp();
  uint32_t rank, own;  // The lane's lowest, and where it is.
  const auto find_lowest = [&] {
    rank = ranks[0];
    own = lane;
#pragma unroll
    for (uint32_t j = 1; j < kOwn; ++j) {
      own = ranks[j] < rank ? j * 32 + lane : own;
      rank = min(rank, ranks[j]);
    }
  };
  find_lowest();
  for (uint32_t base = 0; base < length; base += 32) {
    const uint32_t here = min(32u, length - base);
    uint32_t slot = base + lane < free ? free_slots[base + lane] : kNoSlot;
    bool all_pinned = false;
    for (uint32_t k = free > base ? free - base : 0; k < here; ++k) {
      const uint32_t lowest = __reduce_min_sync(kEveryLane, rank);
      all_pinned = lowest == kNeverEvicted;
      if (all_pinned) break;
      const uint32_t taken = __reduce_min_sync(kEveryLane, rank == lowest ? own : kNoSlot);
      if (lane == k) slot = taken;
      if (own == taken) {
#pragma unroll
        for (uint32_t j = 0; j < kOwn; ++j) ranks[j] = j == taken / 32 ? kNeverEvicted : ranks[j];
        find_lowest();
      }
    }
    if (lane < here && slot != kNoSlot) {
      const uint32_t sorted = first + base + lane;
      const bool evicts = base + lane >= free;
      slot += begin;
      if (evicts) {
        uint4 evicted = Words(a.index.entries + slot);
        evicted.w = a.index.dirty[slot];
        a.w.evicted[sorted] = evicted;
      }
      const RowName name = Load(a.names.data + a.w.values[sorted]);
      a.index.entries[slot] = {name.key, name.table, FirstScore(step.step)};
      a.index.digests[slot] = CacheDigestOf(NameBits(name));
      a.index.dirty[slot] = 0;
      a.w.plan[sorted] = slot | (evicts ? kEvicts : 0);
    }
    if (all_pinned) return;
  }
}

// Which slot each name gets. The names are sorted by bucket; a warp takes those buckets whose first name is one of its
// kTile. Bytes moved: 16 a slot of those buckets (their entries), 8 in and 20 out a name. Bound by the latency of the
// loads, which depend on each other, and, where rows are evicted, by instructions: two reductions a name.
__global__ void __launch_bounds__(kBlock) PlaceKernel(InsertArguments a) {
  __shared__ uint8_t free_slots[kWarps][kBucketSlots];
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t first = (uint64_t{blockIdx.x} * kBlock + threadIdx.x) / 32 * kTile;
  const uint32_t max = a.names.max;
  const uint32_t none = a.index.buckets;
  if (first >= max) return;
  const uint32_t bucket = first + lane < max ? a.w.buckets[first + lane] : none;
  uint32_t previous = __shfl_up_sync(kEveryLane, bucket, 1);
  if (lane == 0) previous = first == 0 ? 0xffffffff : a.w.buckets[first - 1];
  const uint32_t edges = __ballot_sync(kEveryLane, bucket != previous);
  for (uint32_t starts = edges & ((1u << kTile) - 1); starts != 0; starts &= starts - 1) {
    const uint32_t start = __ffs(starts) - 1;
    const uint32_t own = __shfl_sync(kEveryLane, bucket, start);
    if (own == none) return;
    const uint32_t later = edges & ~((2u << start) - 1);
    uint32_t length = (later != 0 ? __ffs(later) - 1 : 32) - start;
    for (uint64_t from = first + 32; later == 0 && length < kBucketSlots; from += 32) {
      const uint32_t others = ~__ballot_sync(kEveryLane, from + lane < max && a.w.buckets[from + lane] == own);
      length += others != 0 ? __ffs(others) - 1 : 32;
      if (others != 0) break;
    }
    PlaceInBucket(a, own, static_cast<uint32_t>(first) + start, min(length, kBucketSlots),
                  free_slots[threadIdx.x / 32]);
    __syncwarp();
  }
}

// Carries the plan out. A warp takes 32 sorted names, so that the slots written are near each other: each lane says
// what became of a name, and the warp goes through the records as one array of vectors: the old record out, the new one
// in. Bytes moved, a name: 16 in, 4 out and its record twice; where a row is evicted 32 more, and its record twice.
// Bound by HBM, which gives reads and writes of scattered rows at about 60 % of its copy bandwidth; a fourth block on
// each SM made it slower.
__global__ void __launch_bounds__(kBlock) MoveKernel(InsertArguments a) {
  constexpr uint32_t kBatch = 4;
  const uint32_t lane = threadIdx.x % 32;
  const Tile tile = TileOf(a.parts, a.row_vectors);
  if (tile.first >= a.names.max) return;
  const uint32_t sorted = tile.first + lane;
  const bool is_name = sorted < CountOf(a.names);
  const uint32_t plan = is_name ? a.w.plan[sorted] : kNoSlot;
  const uint32_t i = is_name ? a.w.values[sorted] : 0;
  const bool inserts = plan != kNoSlot;
  const bool evicts = inserts && plan >= kEvicts;
  const uint32_t slot = inserts ? plan & ~kEvicts : kNoSlot;
  const uint64_t sums = sorted < a.names.max ? a.w.sums[sorted] : 0;
  const uint32_t evicted = static_cast<uint32_t>(sums);
  const uint32_t refused = static_cast<uint32_t>(sums >> 32);

  if (tile.is_first_part) {
    if (is_name) a.slots[i] = slot;
    if (is_name && !inserts) a.evicted.refused[refused] = i;
    if (sorted == a.names.max - 1) {
      *a.evicted.count = evicted + (evicts ? 1 : 0);
      *a.evicted.refused_count = refused + (is_name && !inserts ? 1 : 0);
    }
    if (evicts) {
      const uint4 row = a.w.evicted[sorted];
      RowName name = NameOf(row);
      name.padding = 0;
      a.evicted.names[evicted] = name;
      a.evicted.dirty[evicted] = static_cast<uint8_t>(row.w);
    }
  }

  const uint4* in = reinterpret_cast<const uint4*>(a.new_records);
  uint4* out = reinterpret_cast<uint4*>(a.evicted.records);
  uint4* records = reinterpret_cast<uint4*>(a.records);
  const uint32_t position = evicts ? evicted : kNoSlot;
  Walk walk(tile.begin, a.row_vectors);
  for (uint32_t base = tile.begin; base < tile.end; base += 32 * kBatch) {
    uint4 fresh[kBatch], old[kBatch];
    uint32_t columns[kBatch], slots[kBatch], positions[kBatch];
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      const uint32_t from = __shfl_sync(kEveryLane, i, walk.row);
      slots[u] = __shfl_sync(kEveryLane, slot, walk.row);
      positions[u] = __shfl_sync(kEveryLane, position, walk.row);
      columns[u] = walk.column;
      if (walk.vector >= tile.end) slots[u] = positions[u] = kNoSlot;
      if (slots[u] != kNoSlot) fresh[u] = __ldcs(in + uint64_t{from} * a.row_vectors + columns[u]);
      if (positions[u] != kNoSlot) old[u] = __ldcs(records + uint64_t{slots[u]} * a.row_vectors + columns[u]);
      walk.Next();
    }
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      if (positions[u] != kNoSlot) __stcs(out + uint64_t{positions[u]} * a.row_vectors + columns[u], old[u]);
      if (slots[u] != kNoSlot) records[uint64_t{slots[u]} * a.row_vectors + columns[u]] = fresh[u];
    }
  }
}

}  // namespace

size_t internal::InsertLibraryBytes(const RowCacheOptions& options) {
  const uint32_t n = options.batch_rows;
  uint32_t* none = nullptr;
  size_t sort = 0, sums = 0;
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, sort, none, none, none, none, n, 0,
                                             BucketBits(RowCacheBuckets(options))));
  PrefixSums(PlanSum{}, n, static_cast<uint64_t*>(nullptr), nullptr, &sums, nullptr);
  return std::max(sort, sums);
}

void RowCacheGpu::Insert(const DeviceNames& names, const char* records, const RowCacheStep* step, uint32_t* slots,
                         const DeviceEvicted& evicted, const Stream& queue) {
  CHECK_LE(names.max, options_.batch_rows);
  if (names.max == 0) {
    SetToZero(evicted.count, queue);
    SetToZero(evicted.refused_count, queue);
    return;
  }
  CHECK(IsAligned16(records) && IsAligned16(evicted.records));
  const Workspace w = Divide(options_.batch_rows, library_bytes_, workspace_);
  const uint32_t row_vectors = static_cast<uint32_t>(options_.layout.slot_bytes() / sizeof(uint4));
  const uint32_t parts = PartsOf(row_vectors);
  const InsertArguments a{index_, names, step, w, records_, records, slots, evicted, row_vectors, parts};
  const Operation operation([&] {
    const double n = names.max, record_bytes = options_.layout.slot_bytes();
    // Buckets, sort, places, sums of places, records; all of the buckets' slots, and as if each name evicted a row.
    return OperationCost{.name = "cache insert",
                         .bytes = (28 + 16 + 28 + 12 + 20 + 32 + 4 * record_bytes) * n +
                                  16.0 * std::min(n, 1.0 * index_.buckets) * kBucketSlots};
  });
  Launch(BucketKernel, BlocksOf(names.max), kBlock, queue, index_, names, w);
  size_t library_bytes = w.library_bytes;
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(w.library, library_bytes, w.buckets_in, w.buckets, w.values_in, w.values,
                                             names.max, 0, BucketBits(index_.buckets), queue.get()));
  Launch(PlaceKernel, BlocksOf((int64_t{names.max} + kTile - 1) / kTile * 32), kBlock, queue, a);
  PrefixSums(PlanSum{names, w.plan}, names.max, w.sums, w.library, &library_bytes, &queue);
  Launch(MoveKernel, BlocksOfTiles(names.max, parts), kBlock, queue, a);
}

}  // namespace sparrow
