#include <algorithm>
#include <utility>

#include "base/cuda/operation.h"
#include "embedding/row_cache_device.cuh"
#include "embedding/row_cache_gpu.h"

namespace sparrow {
namespace {

using namespace internal;  // NOLINT: the kernels' shared part.

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

struct FindArguments {
  DeviceRowIndex index;
  DeviceNames names;
  const RowCacheStep* step;
  uint32_t* slots;
  const char* records;
  uint64_t slot_bytes;
  float* values;
  uint32_t row_vectors;
  uint32_t parts;
};

// A warp looks up 32 names (FindSlots), and then copies their rows, which it goes through as one array, eight vectors a
// lane under way together. Bytes moved, a name: 16 (its name), its bucket's digests, from L2 where a bucket is met
// again, 32 in and 32 out (the sector of the slot's entry), 4 (the slot), and twice its weights. Bound by L2: where
// rows are only looked at, it is 83 % busy (with copies 86 %) and HBM 55 % (72 %). Where they are used, writing one
// sector a name to HBM adds 30 to 50 us a million.
template <typename Vector, bool kCopies>
__global__ void __launch_bounds__(kBlock, kCopies ? 3 : 4) FindKernel(FindArguments a) {
  __shared__ FindScratch scratch[kWarps];
  constexpr uint32_t kBatch = 8;
  const uint32_t lane = threadIdx.x % 32;
  const Tile tile = TileOf(a.parts, a.row_vectors);
  const uint32_t count = CountOf(a.names);
  if (tile.first >= count) return;
  const uint32_t i = tile.first + lane;
  const uint32_t found = FindSlots(a.index, Words(a.names.data + min(i, count - 1)),
                                   tile.is_first_part ? a.step : nullptr, scratch + threadIdx.x / 32);
  const uint32_t slot = i < count ? found : kNoSlot;
  if (i < count && tile.is_first_part) a.slots[i] = slot;

  if constexpr (kCopies) {
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
}

// One thread a slot. Bytes moved: 4 in, 1 out. Bound by HBM's sectors: 32 bytes for each mark.
__global__ void __launch_bounds__(kBlock)
    MarkKernel(DeviceRowIndex index, const uint32_t* slots, uint32_t max, const uint32_t* count) {
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < CountOf(max, count) && slots[i] < index.buckets * kBucketSlots) index.dirty[slots[i]] = 1;
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

size_t LibraryBytes(const RowCacheOptions& options) {
  size_t marks = 0;
  PrefixSums(IsMissing{}, options.batch_rows, static_cast<uint32_t*>(nullptr), nullptr, &marks, nullptr);
  return std::max(marks, InsertLibraryBytes(options));
}

// Where the parts of an index begin, in one piece of memory.
DeviceRowIndex DivideIndex(uint32_t buckets, char* memory, size_t* bytes) {
  const size_t slots = size_t{buckets} * kBucketSlots;
  DeviceRowIndex index;
  index.buckets = buckets;
  index.digests = reinterpret_cast<uint8_t*>(memory);
  index.dirty = index.digests + slots;
  index.entries = reinterpret_cast<CacheEntry*>(index.dirty + slots);
  *bytes = (slots * (sizeof(CacheEntry) + 2) + 255) / 256 * 256;
  return index;
}

size_t RecordsBytes(const RowCacheOptions& options) {
  const size_t rows = size_t{RowCacheBuckets(options)} * kBucketSlots + options.staging_rows;
  return (rows * options.layout.slot_bytes() + 255) / 256 * 256;
}

}  // namespace

// The records come first, then the index, then the workspace, each at a multiple of 256.
uint64_t RowCacheGpu::Bytes(const RowCacheOptions& options) {
  size_t index_bytes = 0;
  DivideIndex(RowCacheBuckets(options), nullptr, &index_bytes);
  return RecordsBytes(options) + index_bytes + Divide(options.batch_rows, LibraryBytes(options), nullptr).bytes;
}

RowCacheGpu::RowCacheGpu(const RowCacheOptions& options, DeviceBuffer<char> memory)
    : options_(options), library_bytes_(LibraryBytes(options)), memory_(std::move(memory)), records_(memory_.data()) {
  size_t index_bytes = 0;
  char* index = records_ + RecordsBytes(options);
  index_ = DivideIndex(RowCacheBuckets(options), index, &index_bytes);
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
  const uint32_t row_vectors = wide ? dim / 4 : dim;
  const uint32_t parts = values == nullptr ? 1 : PartsOf(row_vectors);
  const FindArguments arguments{index_, names,       step, slots, records_, options_.layout.slot_bytes(),
                                values, row_vectors, parts};
  const int64_t grid = BlocksOfTiles(names.max, parts);
  const Operation operation([&] {
    return OperationCost{.name = "cache find", .bytes = (84.0 + (values == nullptr ? 0 : 8 * dim)) * names.max};
  });
  if (values == nullptr) {
    Launch(FindKernel<float, false>, grid, kBlock, queue, arguments);
  } else if (wide) {
    Launch(FindKernel<float4, true>, grid, kBlock, queue, arguments);
  } else {
    Launch(FindKernel<float, true>, grid, kBlock, queue, arguments);
  }
}

void RowCacheGpu::MarkDirty(const uint32_t* slots, uint32_t max, const uint32_t* count, const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "cache mark dirty", .bytes = 5.0 * max}; });
  Launch(MarkKernel, BlocksOf(max), kBlock, queue, index_, slots, max, count);
}

void RowCacheGpu::TakeDirty(uint32_t first_slot, uint32_t slots, const DeviceDirty& dirty, const Stream& queue) {
  CHECK_LE(slots, options_.batch_rows);
  CHECK_LE(uint64_t{first_slot} + slots, this->slots());
  if (slots == 0) return SetToZero(dirty.count, queue);
  CHECK(IsAligned16(dirty.records));
  const Workspace w = Divide(options_.batch_rows, library_bytes_, workspace_);
  size_t library_bytes = w.library_bytes;
  const double record_bytes = options_.layout.slot_bytes();
  const Operation operation([&] {
    return OperationCost{.name = "cache take dirty",
                         .bytes = (5.0 + 5) * slots,
                         .row_bytes = 36 + 2 * record_bytes,
                         .rows_max = static_cast<double>(std::min(slots, dirty.rows_max))};
  });
  PrefixSums(IsDirty{index_.dirty + first_slot}, slots, w.values, w.library, &library_bytes, &queue);
  Launch(TakeKernel, BlocksOf(slots), kBlock, queue, index_, first_slot, slots, dirty, w);
  const uint32_t row_vectors = static_cast<uint32_t>(options_.layout.slot_bytes() / sizeof(uint4));
  const uint32_t parts = PartsOf(row_vectors);
  Launch(GatherKernel, BlocksOfTiles(std::min(slots, dirty.rows_max), parts), kBlock, queue, w.values_in, dirty.count,
         records_, dirty.records, row_vectors, parts);
}

void RowCacheGpu::ListMissing(const DeviceNames& names, const uint32_t* slots, const DeviceMissing& missing,
                              const Stream& queue) {
  CHECK_LE(names.max, options_.batch_rows);
  if (names.max == 0) return SetToZero(missing.count, queue);
  const Workspace w = Divide(options_.batch_rows, library_bytes_, workspace_);
  size_t library_bytes = w.library_bytes;
  const Operation operation([&] {
    return OperationCost{
        .name = "cache list missing", .bytes = (8.0 + 8) * names.max, .row_bytes = 36, .rows_max = 1.0 * names.max};
  });
  PrefixSums(IsMissing{names, slots}, names.max, w.values, w.library, &library_bytes, &queue);
  Launch(MissingKernel, BlocksOf(names.max), kBlock, queue, names, slots, w.values, missing);
}

}  // namespace sparrow
