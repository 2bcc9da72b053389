#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <type_traits>
#include <utility>

#include "base/cuda/launch.cuh"
#include "embedding/row_cache_gpu.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr uint32_t kWarps = kBlock / 32;
constexpr uint32_t kEveryLane = 0xffffffff;
constexpr uint32_t kEvicts = 1u << 31;    // In a plan: the slot holds a row that is evicted.
constexpr uint32_t kTile = 8;             // Sorted names whose buckets are one warp's in PlaceKernel.
constexpr uint32_t kVectorsOfAPart = 64;  // Of a row; wider rows are copied by several warps.

int64_t BlocksOf(int64_t threads) { return (threads + kBlock - 1) / kBlock; }

__device__ uint32_t CountOf(uint32_t max, const uint32_t* count) { return count == nullptr ? max : min(max, *count); }
__device__ uint32_t CountOf(const DeviceNames& names) { return CountOf(names.max, names.count); }

__device__ uint4 Words(const RowName* name) { return *reinterpret_cast<const uint4*>(name); }
__device__ uint4 Words(const CacheEntry* entry) { return *reinterpret_cast<const uint4*>(entry); }
__device__ RowName NameOf(const uint4& words) { return {words.x | uint64_t{words.y} << 32, words.z, words.w}; }
__device__ RowName Load(const RowName* name) { return NameOf(Words(name)); }

// The parts of a workspace.
struct Workspace {
  uint32_t* buckets_in;  // [batch_rows]: bucket of a name; index.buckets: none.
  uint32_t* values_in;   // [batch_rows]: its position. TakeDirty: slots taken.
  uint32_t* buckets;     // [batch_rows]: the same, sorted by bucket, and within a bucket by position.
  uint32_t* values;      // [batch_rows]
  uint32_t* plan;        // [batch_rows]: by position, kNoSlot or the slot that the name gets, with kEvicts.
  uint64_t* sums;        // [batch_rows]: of the plans before.
  uint4* evicted;        // [batch_rows]: by position, the name evicted and, as the last word, whether it is dirty.
  char* library;         // What sort and scan need.
  size_t library_bytes;
  size_t bytes;  // Of all.
};

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

// For the scan of marks: 1 where a row is dirty.
struct IsDirty {
  const uint8_t* dirty;
  __device__ uint32_t operator()(uint32_t i) const { return dirty[i]; }
};

struct IsMissing {
  DeviceNames names;
  const uint32_t* slots;
  __device__ uint32_t operator()(uint32_t i) const { return i < CountOf(names) && slots[i] == kNoSlot ? 1 : 0; }
};

// sums[i] = value(0) + ... + value(i - 1). With library == nullptr only says how many bytes it needs there.
template <typename Value, typename Sum>
void PrefixSums(const Value& value, uint32_t n, Sum* sums, char* library, size_t* library_bytes, const Stream* queue) {
  const auto values = thrust::make_transform_iterator(thrust::make_counting_iterator(uint32_t{0}), value);
  CHECK_CUDA(cub::DeviceScan::ExclusiveSum(library, *library_bytes, values, sums, n,
                                           queue == nullptr ? nullptr : queue->get()));
}

int BucketBits(uint32_t buckets) { return std::max(1, static_cast<int>(std::bit_width(buckets))); }

size_t LibraryBytes(const RowCacheOptions& options) {
  const uint32_t n = options.batch_rows;
  uint32_t* none = nullptr;
  size_t sort = 0, sums = 0, marks = 0;
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, sort, none, none, none, none, n, 0,
                                             BucketBits(RowCacheBuckets(options))));
  PrefixSums(PlanSum{}, n, static_cast<uint64_t*>(nullptr), nullptr, &sums, nullptr);
  PrefixSums(IsMissing{}, n, none, nullptr, &marks, nullptr);
  return std::max({sort, sums, marks});
}

Workspace Divide(uint32_t batch_rows, size_t library_bytes, char* memory) {
  Workspace w = {};
  const auto take = [&](auto** part, size_t items) {
    *part = reinterpret_cast<std::remove_reference_t<decltype(*part)>>(memory + w.bytes);
    w.bytes += (items * sizeof(**part) + 255) / 256 * 256;
  };
  take(&w.buckets_in, batch_rows);
  take(&w.values_in, batch_rows);
  take(&w.buckets, batch_rows);
  take(&w.values, batch_rows);
  take(&w.plan, batch_rows);
  take(&w.sums, batch_rows);
  take(&w.evicted, batch_rows);
  take(&w.library, library_bytes);
  w.library_bytes = library_bytes;
  return w;
}

// A warp goes through vectors of 32 rows that lie side by side: lane l takes begin + l, begin + l + 32, ...
struct Walk {
  uint32_t vectors;  // Of a row.
  uint32_t rows_on, columns_on;
  uint32_t vector, row, column;

  __device__ Walk(uint32_t begin, uint32_t row_vectors) : vectors(row_vectors), vector(begin + threadIdx.x % 32) {
    rows_on = 32 / vectors;
    columns_on = 32 - rows_on * vectors;
    row = vector / vectors;
    column = vector - row * vectors;
  }
  __device__ void Next() {
    vector += 32;
    row += rows_on;
    column += columns_on;
    if (column >= vectors) {
      column -= vectors;
      ++row;
    }
  }
};

// Rows are 32 a warp, or fewer vectors of 32 rows for each of `parts` warps.
struct Tile {
  uint32_t first;       // Row.
  uint32_t begin, end;  // Vectors.
  bool is_first_part;
};

__device__ Tile TileOf(uint32_t parts, uint32_t row_vectors) {
  const uint64_t warp = (uint64_t{blockIdx.x} * kBlock + threadIdx.x) / 32;
  const uint32_t part = parts == 1 ? 0 : static_cast<uint32_t>(warp % parts);
  const uint32_t vectors = 32 * row_vectors / parts;  // A whole number: PartsOf.
  return {static_cast<uint32_t>(warp / parts) * 32, part * vectors, (part + 1) * vectors, part == 0};
}

uint32_t PartsOf(uint64_t row_vectors) {
  uint32_t parts = 1;  // Divides 32.
  while (parts < 32 && row_vectors / parts > kVectorsOfAPart) parts *= 2;
  return parts;
}

int64_t BlocksOfTiles(uint32_t rows, uint32_t parts) { return BlocksOf((int64_t{rows} + 31) / 32 * parts * 32); }

// 0x80 in each byte of `words` that is 0, and 0 elsewhere. Exact: a free slot may keep an old name, so it must not
// match.
__device__ uint32_t ZeroBytes(uint32_t words) { return ~(((words & 0x7f7f7f7f) + 0x7f7f7f7f) | words | 0x7f7f7f7f); }

struct FindScratch {
  uint4 names[32];
  uint32_t slots[32];
  uint32_t scores[32];
};

struct Found {
  uint32_t slot;  // Or kNoSlot.
  uint32_t score;
};

// Where the lane's name lies. Four lanes read the digests of a name's bucket, 16 bytes a load; so 8 names are looked up
// together, and the digests of all 32 are under way at once. Then each lane compares the names of the slots that match,
// of its four buckets together. All lanes of a warp call it.
__device__ Found FindSlots(const DeviceRowIndex& index, const uint4& name, FindScratch* scratch) {
  constexpr uint32_t kRounds = 4;
  constexpr uint32_t kLoads = kBucketSlots / 64;
  const uint32_t lane = threadIdx.x % 32;
  if (index.buckets == 0) return {kNoSlot, 0};
  const uint64_t bits = NameBits(NameOf(name));
  const uint32_t own_bucket = CacheBucketOf(bits, index.buckets);
  const uint32_t own_digests = CacheDigestOf(bits) * 0x01010101u;
  scratch->names[lane] = name;
  scratch->slots[lane] = kNoSlot;
  __syncwarp();

  uint32_t begins[kRounds];
  uint4 words[kRounds][kLoads];
#pragma unroll
  for (uint32_t r = 0; r < kRounds; ++r) {
    begins[r] = __shfl_sync(kEveryLane, own_bucket, r * 8 + lane / 4) * kBucketSlots + lane % 4 * 16;
#pragma unroll
    for (uint32_t load = 0; load < kLoads; ++load) {
      words[r][load] = *reinterpret_cast<const uint4*>(index.digests + begins[r] + load * 64);
    }
  }
  uint32_t matches[kRounds];  // Bit 8 * byte + word: that digest, of words[r].
  uint32_t any = 0;
#pragma unroll
  for (uint32_t r = 0; r < kRounds; ++r) {
    const uint32_t digests = __shfl_sync(kEveryLane, own_digests, r * 8 + lane / 4);
    const uint32_t* word = reinterpret_cast<const uint32_t*>(words[r]);
    matches[r] = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4 * kLoads; ++i) matches[r] |= ZeroBytes(word[i] ^ digests) >> (7 - i);
    any |= matches[r];
  }
  while (any != 0) {
    uint32_t slots[kRounds];
    uint4 found[kRounds];
#pragma unroll
    for (uint32_t r = 0; r < kRounds; ++r) {
      if (matches[r] == 0) continue;
      const uint32_t bit = __ffs(matches[r]) - 1;
      const uint32_t word = bit % 8;
      slots[r] = begins[r] + word / 4 * 64 + word % 4 * 4 + bit / 8;
      found[r] = Words(index.entries + slots[r]);
    }
    any = 0;
#pragma unroll
    for (uint32_t r = 0; r < kRounds; ++r) {
      if (matches[r] == 0) continue;
      const uint32_t owner = r * 8 + lane / 4;
      matches[r] &= matches[r] - 1;
      if (NameOf(found[r]) == NameOf(scratch->names[owner])) {
        scratch->slots[owner] = slots[r];
        scratch->scores[owner] = found[r].w;
        matches[r] = 0;
      }
      any |= matches[r];
    }
  }
  __syncwarp();
  return {scratch->slots[lane], scratch->scores[lane]};
}

struct FindArguments {
  DeviceRowIndex index;
  DeviceNames names;
  const RowCacheStep* step;
  uint32_t* slots;
  const char* records;
  uint64_t slot_bytes;
  float* values;
  uint32_t row_vectors;  // 0: values are not wanted.
  uint32_t parts;
};

// A warp looks up 32 names (FindSlots), and then copies their rows, which it goes through as one array, eight vectors a
// lane under way together. Bytes moved, a name: 16 (its name), its bucket's digests, from L2 where a bucket is met
// again, 32 in and 32 out (the sector of the slot's entry), 4 (the slot), and twice its weights. Bound by HBM: for the
// rows by its bandwidth, before them by how many sectors anywhere it gives in a second.
// A score is written without an atomic: whoever uses the row at this step writes the same.
template <typename Vector>
__global__ void __launch_bounds__(kBlock, 4) FindKernel(FindArguments a) {
  __shared__ FindScratch scratch[kWarps];
  constexpr uint32_t kBatch = 8;
  const uint32_t lane = threadIdx.x % 32;
  const Tile tile = TileOf(a.parts, a.row_vectors);
  const uint32_t count = CountOf(a.names);
  if (tile.first >= count) return;
  const uint32_t i = tile.first + lane;
  const Found found = FindSlots(a.index, Words(a.names.data + min(i, count - 1)), scratch + threadIdx.x / 32);
  const uint32_t slot = i < count ? found.slot : kNoSlot;
  const bool uses = slot != kNoSlot && a.step != nullptr && tile.is_first_part;

  if (a.row_vectors != 0) {
    Vector* out = reinterpret_cast<Vector*>(a.values) + uint64_t{tile.first} * a.row_vectors;
    Walk walk(tile.begin, a.row_vectors);
    for (uint32_t base = tile.begin; base < tile.end; base += 32 * kBatch) {
      Vector vectors[kBatch];
      uint32_t to[kBatch];
#pragma unroll
      for (uint32_t u = 0; u < kBatch; ++u) {
        const uint32_t from = __shfl_sync(kEveryLane, slot, walk.row);
        to[u] = walk.vector < tile.end && from != kNoSlot ? walk.vector : kNoSlot;
        if (to[u] != kNoSlot) {
          vectors[u] = __ldcs(reinterpret_cast<const Vector*>(a.records + from * a.slot_bytes) + walk.column);
        }
        walk.Next();
      }
#pragma unroll
      for (uint32_t u = 0; u < kBatch; ++u) {
        if (to[u] != kNoSlot) __stcs(out + to[u], vectors[u]);
      }
    }
  }
  if (i < count && tile.is_first_part) a.slots[i] = slot;
  if (!uses) return;
  const uint32_t score = UsedScore(found.score, a.step->step);
  if (score != found.score) a.index.entries[slot].score = score;
}

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

// Gives the names w.values[first ... first + length), all of one bucket, the bucket's free slots in their order and
// then those of the lowest ranks, one after the other, and writes the names there; what was there goes to w.evicted.
// Lane l owns slots l, l + 32, ... of the bucket. Names behind the last slot that is not pinned get none.
__device__ void PlaceInBucket(const InsertArguments& a, uint32_t bucket, uint32_t first, uint32_t length,
                              uint8_t* free_slots /*[kBucketSlots]*/) {
  constexpr uint32_t kOwn = kBucketSlots / 32;
  const uint32_t lane = threadIdx.x % 32;
  const RowCacheStep step = *a.step;
  const uint32_t pinned_recency = PinnedRecency(step);
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
    ranks[j] = is_free ? kNeverEvicted : EvictionRank(ranks[j], step.step, pinned_recency);
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
      const uint32_t i = a.w.values[first + base + lane];
      const bool evicts = base + lane >= free;
      slot += begin;
      if (evicts) {
        uint4 evicted = Words(a.index.entries + slot);
        evicted.w = a.index.dirty[slot];
        a.w.evicted[i] = evicted;
      }
      const RowName name = Load(a.names.data + i);
      a.index.entries[slot] = {name.key, name.table, FirstScore(step.step)};
      a.index.digests[slot] = CacheDigestOf(NameBits(name));
      a.index.dirty[slot] = 0;
      a.w.plan[i] = slot | (evicts ? kEvicts : 0);
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

// Carries the plan out. A warp takes 32 names, in the order given: each lane says what became of a name, and the warp
// goes through the records as one array of vectors: the old record out, the new one in. Bytes moved, a name: 16 in, 4
// out and its record twice; where a row is evicted 32 more, and its record twice. Bound by HBM.
__global__ void __launch_bounds__(kBlock) MoveKernel(InsertArguments a) {
  constexpr uint32_t kBatch = 4;
  const uint32_t lane = threadIdx.x % 32;
  const Tile tile = TileOf(a.parts, a.row_vectors);
  if (tile.first >= a.names.max) return;
  const uint32_t i = tile.first + lane;
  const bool is_name = i < CountOf(a.names);
  const uint32_t plan = is_name ? a.w.plan[i] : kNoSlot;
  const bool inserts = plan != kNoSlot;
  const bool evicts = inserts && plan >= kEvicts;
  const uint32_t slot = inserts ? plan & ~kEvicts : kNoSlot;
  const uint64_t sums = i < a.names.max ? a.w.sums[i] : 0;
  const uint32_t evicted = static_cast<uint32_t>(sums);
  const uint32_t refused = static_cast<uint32_t>(sums >> 32);

  if (tile.is_first_part) {
    if (is_name) a.slots[i] = slot;
    if (is_name && !inserts) a.evicted.refused[refused] = i;
    if (i == a.names.max - 1) {
      *a.evicted.count = evicted + (evicts ? 1 : 0);
      *a.evicted.refused_count = refused + (is_name && !inserts ? 1 : 0);
    }
    if (evicts) {
      const uint4 row = a.w.evicted[i];
      RowName name = NameOf(row);
      name.padding = 0;
      a.evicted.names[evicted] = name;
      a.evicted.dirty[evicted] = static_cast<uint8_t>(row.w);
    }
  }

  const uint4* in = reinterpret_cast<const uint4*>(a.new_records) + uint64_t{tile.first} * a.row_vectors;
  uint4* out = reinterpret_cast<uint4*>(a.evicted.records);
  uint4* records = reinterpret_cast<uint4*>(a.records);
  const uint32_t position = evicts ? evicted : kNoSlot;
  Walk walk(tile.begin, a.row_vectors);
  for (uint32_t base = tile.begin; base < tile.end; base += 32 * kBatch) {
    uint4 fresh[kBatch], old[kBatch];
    uint32_t columns[kBatch], slots[kBatch], positions[kBatch];
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      slots[u] = __shfl_sync(kEveryLane, slot, walk.row);
      positions[u] = __shfl_sync(kEveryLane, position, walk.row);
      columns[u] = walk.column;
      if (walk.vector >= tile.end) slots[u] = positions[u] = kNoSlot;
      if (slots[u] != kNoSlot) fresh[u] = __ldcs(in + walk.vector);
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

// One thread a slot. Bytes moved: 4 in, 1 out. Bound by HBM's sectors: 32 bytes for each mark.
__global__ void __launch_bounds__(kBlock)
    MarkKernel(uint8_t* dirty, const uint32_t* slots, uint32_t max, const uint32_t* count) {
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < CountOf(max, count) && slots[i] != kNoSlot) dirty[slots[i]] = 1;
}

// Lists the slots of the dirty rows, and cleans them; one thread a slot. Bytes moved: 5 a slot, 36 a dirty row. Bound
// by HBM.
__global__ void __launch_bounds__(kBlock)
    TakeKernel(DeviceRowIndex index, uint32_t first_slot, uint32_t slots, DeviceDirty out, Workspace w) {
  const uint32_t* before = w.values;
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= slots) return;
  const uint32_t slot = first_slot + static_cast<uint32_t>(i);
  const bool dirty = index.dirty[slot] != 0;
  if (i == slots - 1) *out.count = min(before[i] + (dirty ? 1 : 0), out.rows_max);
  if (!dirty || before[i] >= out.rows_max) return;
  w.values_in[before[i]] = slot;
  out.names[before[i]] = {index.entries[slot].key, index.entries[slot].table, 0};
  index.dirty[slot] = 0;
}

// Copies the records of the listed slots. A warp takes 32 and goes through them as one array of vectors. Bytes moved:
// twice a record. Bound by HBM.
__global__ void __launch_bounds__(kBlock)
    GatherKernel(const uint32_t* slots, const uint32_t* count, const char* records, char* to, uint32_t row_vectors,
                 uint32_t parts) {
  constexpr uint32_t kBatch = 8;
  const Tile tile = TileOf(parts, row_vectors);
  if (tile.first >= *count) return;
  const uint32_t i = tile.first + threadIdx.x % 32;
  const uint32_t slot = i < *count ? slots[i] : kNoSlot;
  uint4* out = reinterpret_cast<uint4*>(to) + uint64_t{tile.first} * row_vectors;
  Walk walk(tile.begin, row_vectors);
  for (uint32_t base = tile.begin; base < tile.end; base += 32 * kBatch) {
    uint4 vectors[kBatch];
    uint32_t places[kBatch];
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      const uint32_t from = __shfl_sync(kEveryLane, slot, walk.row);
      places[u] = walk.vector < tile.end && from != kNoSlot ? walk.vector : kNoSlot;
      if (places[u] != kNoSlot) {
        vectors[u] = __ldcs(reinterpret_cast<const uint4*>(records) + uint64_t{from} * row_vectors + walk.column);
      }
      walk.Next();
    }
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      if (places[u] != kNoSlot) __stcs(out + places[u], vectors[u]);
    }
  }
}

// A warp takes 32 names. Bytes moved, a name: as a find, and three sectors. Bound by HBM. Two warps that are given the
// same name may both find it, or one of them; the slot is free afterwards either way.
__global__ void __launch_bounds__(kBlock) RemoveKernel(DeviceRowIndex index, DeviceNames names) {
  __shared__ FindScratch scratch[kWarps];
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  const uint32_t count = CountOf(names);
  if (i - threadIdx.x % 32 >= count) return;
  const uint4 name = Words(names.data + (i < count ? i : count - 1));
  const uint32_t slot = FindSlots(index, name, scratch + threadIdx.x / 32).slot;
  if (slot == kNoSlot) return;
  index.digests[slot] = 0;
  index.entries[slot].score = 0;
  index.dirty[slot] = 0;
}

// One thread a name. Bytes moved: 8 a name, 36 a missing one. Bound by HBM.
__global__ void __launch_bounds__(kBlock)
    MissingKernel(DeviceNames names, const uint32_t* slots, const uint32_t* before, DeviceMissing out) {
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= names.max) return;
  const bool missing = i < CountOf(names) && slots[i] == kNoSlot;
  if (i == names.max - 1) *out.count = before[i] + (missing ? 1 : 0);
  if (!missing) return;
  out.names[before[i]] = Load(names.data + i);
  out.positions[before[i]] = static_cast<uint32_t>(i);
}

bool IsAligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

void SetToZero(uint32_t* count, const Stream& queue) { internal::FillDevice(count, 0, sizeof(*count), queue); }

// Where the parts of an index begin, in one piece of memory.
DeviceRowIndex DivideIndex(uint32_t buckets, char* memory, size_t* bytes) {
  const size_t slots = size_t{buckets} * kBucketSlots;
  DeviceRowIndex index;
  index.buckets = buckets;
  index.digests = reinterpret_cast<uint8_t*>(memory);
  index.dirty = index.digests + slots;
  index.entries = reinterpret_cast<CacheEntry*>(index.dirty + slots);
  *bytes = slots * (sizeof(CacheEntry) + 2);
  return index;
}

}  // namespace

uint64_t RowCacheGpu::Bytes(const RowCacheOptions& options) {
  size_t index_bytes = 0;
  const uint32_t buckets = RowCacheBuckets(options);
  DivideIndex(buckets, nullptr, &index_bytes);
  return uint64_t{buckets} * kBucketSlots * options.layout.slot_bytes() + index_bytes +
         Divide(options.batch_rows, LibraryBytes(options), nullptr).bytes;
}

// The records come first; a bucket's are a multiple of 2048 bytes and its part of the index of 256, so that all that
// follows begins at a multiple of 256.
RowCacheGpu::RowCacheGpu(const RowCacheOptions& options, DeviceBuffer<char> memory)
    : options_(options), library_bytes_(LibraryBytes(options)), memory_(std::move(memory)), records_(memory_.data()) {
  const uint32_t buckets = RowCacheBuckets(options);
  size_t index_bytes = 0;
  char* index = records_ + size_t{buckets} * kBucketSlots * options.layout.slot_bytes();
  index_ = DivideIndex(buckets, index, &index_bytes);
  workspace_ = index + index_bytes;
}

std::optional<RowCacheGpu> RowCacheGpu::Make(const RowCacheOptions& options, const Stream& queue) {
  CHECK(options.layout.storage() == RowType::kFloat32);
  CHECK(options.batch_rows < 1u << 31) << options.batch_rows << " rows a batch";
  auto memory = DeviceBuffer<char>::Allocate(Bytes(options));
  if (!memory.has_value()) return std::nullopt;
  RowCacheGpu cache(options, std::move(*memory));
  const size_t slots = cache.slots();
  internal::FillDevice(cache.index_.digests, 0, slots * (sizeof(CacheEntry) + 2), queue);  // Marks and entries too.
  return cache;
}

void RowCacheGpu::Find(const DeviceNames& names, const RowCacheStep* step, uint32_t* slots, float* values,
                       const Stream& queue) {
  CHECK_LE(names.max, options_.batch_rows);
  const uint32_t dim = options_.layout.dim();
  const bool wide = dim % 4 == 0 && IsAligned16(values);
  const uint32_t row_vectors = values == nullptr ? 0 : wide ? dim / 4 : dim;
  const uint32_t parts = PartsOf(row_vectors);
  const FindArguments arguments{index_, names,       step, slots, records_, options_.layout.slot_bytes(),
                                values, row_vectors, parts};
  const int64_t grid = BlocksOfTiles(names.max, parts);
  if (wide) {
    Launch(FindKernel<float4>, grid, kBlock, queue, arguments);
  } else {
    Launch(FindKernel<float>, grid, kBlock, queue, arguments);
  }
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
  Launch(BucketKernel, BlocksOf(names.max), kBlock, queue, index_, names, w);
  size_t library_bytes = w.library_bytes;
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(w.library, library_bytes, w.buckets_in, w.buckets, w.values_in, w.values,
                                             names.max, 0, BucketBits(index_.buckets), queue.get()));
  Launch(PlaceKernel, BlocksOf((int64_t{names.max} + kTile - 1) / kTile * 32), kBlock, queue, a);
  PrefixSums(PlanSum{names, w.plan}, names.max, w.sums, w.library, &library_bytes, &queue);
  Launch(MoveKernel, BlocksOfTiles(names.max, parts), kBlock, queue, a);
}

void RowCacheGpu::MarkDirty(const uint32_t* slots, uint32_t max, const uint32_t* count, const Stream& queue) {
  Launch(MarkKernel, BlocksOf(max), kBlock, queue, index_.dirty, slots, max, count);
}

void RowCacheGpu::TakeDirty(uint32_t first_slot, uint32_t slots, const DeviceDirty& dirty, const Stream& queue) {
  CHECK_LE(slots, options_.batch_rows);
  CHECK_LE(uint64_t{first_slot} + slots, this->slots());
  if (slots == 0) return SetToZero(dirty.count, queue);
  CHECK(IsAligned16(dirty.records));
  const Workspace w = Divide(options_.batch_rows, library_bytes_, workspace_);
  size_t library_bytes = w.library_bytes;
  PrefixSums(IsDirty{index_.dirty + first_slot}, slots, w.values, w.library, &library_bytes, &queue);
  Launch(TakeKernel, BlocksOf(slots), kBlock, queue, index_, first_slot, slots, dirty, w);
  const uint32_t row_vectors = static_cast<uint32_t>(options_.layout.slot_bytes() / sizeof(uint4));
  const uint32_t parts = PartsOf(row_vectors);
  Launch(GatherKernel, BlocksOfTiles(std::min(slots, dirty.rows_max), parts), kBlock, queue, w.values_in, dirty.count,
         records_, dirty.records, row_vectors, parts);
}

void RowCacheGpu::Remove(const DeviceNames& names, const Stream& queue) {
  CHECK_LE(names.max, options_.batch_rows);
  Launch(RemoveKernel, BlocksOf(names.max), kBlock, queue, index_, names);
}

void RowCacheGpu::ListMissing(const DeviceNames& names, const uint32_t* slots, const DeviceMissing& missing,
                              const Stream& queue) {
  CHECK_LE(names.max, options_.batch_rows);
  if (names.max == 0) return SetToZero(missing.count, queue);
  const Workspace w = Divide(options_.batch_rows, library_bytes_, workspace_);
  size_t library_bytes = w.library_bytes;
  PrefixSums(IsMissing{names, slots}, names.max, w.values, w.library, &library_bytes, &queue);
  Launch(MissingKernel, BlocksOf(names.max), kBlock, queue, names, slots, w.values, missing);
}

}  // namespace sparrow
