#ifndef SPARROW_EMBEDDING_ROW_CACHE_DEVICE_CUH_
#define SPARROW_EMBEDDING_ROW_CACHE_DEVICE_CUH_

// What the kernels of embedding/row_cache_gpu.h share: the look-up of names by a warp, and the way of a warp through
// rows. For row_cache_gpu.cu and row_cache_insert.cu alone.

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_scan.cuh>
#include <type_traits>

#include "base/cuda/launch.cuh"
#include "embedding/row_cache_gpu.h"
#include "embedding/row_name.cuh"

namespace sparrow {
namespace internal {

using sparrow::Words;  // Beside the one for entries.

constexpr int kBlock = 256;
constexpr uint32_t kWarps = kBlock / 32;
constexpr uint32_t kEveryLane = 0xffffffff;
constexpr uint32_t kVectorsOfAPart = 64;  // Of a row; wider rows are copied by several warps.

inline int64_t BlocksOf(int64_t threads) { return (threads + kBlock - 1) / kBlock; }

__device__ inline uint4 Words(const CacheEntry* entry) { return *reinterpret_cast<const uint4*>(entry); }

// The parts of a workspace.
struct Workspace {
  uint32_t* buckets_in;  // [batch_rows]: bucket of a name; index.buckets: none.
  uint32_t* values_in;   // [batch_rows]: its position. TakeDirty: slots taken.
  uint32_t* buckets;     // [batch_rows]: the same, sorted by bucket, and within a bucket by position.
  uint32_t* values;      // [batch_rows]
  uint32_t* plan;        // [batch_rows]: of the sorted names, kNoSlot or the slot that the name gets, with kEvicts.
  uint64_t* sums;        // [batch_rows]: of the plans before.
  uint4* evicted;        // [batch_rows]: likewise, the name evicted and, as the last word, whether it is dirty.
  char* library;         // What sort and scan need.
  size_t library_bytes;
  size_t bytes;  // Of all.
};

// Bytes that an Insert needs at Workspace::library.
size_t InsertLibraryBytes(const RowCacheOptions& options);

inline Workspace Divide(uint32_t batch_rows, size_t library_bytes, char* memory) {
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

// sums[i] = value(0) + ... + value(i - 1). With library == nullptr only says how many bytes it needs there.
template <typename Value, typename Sum>
void PrefixSums(const Value& value, uint32_t n, Sum* sums, char* library, size_t* library_bytes, const Stream* queue) {
  const auto values = thrust::make_transform_iterator(thrust::make_counting_iterator(uint32_t{0}), value);
  CHECK_CUDA(cub::DeviceScan::ExclusiveSum(library, *library_bytes, values, sums, n,
                                           queue == nullptr ? nullptr : queue->get()));
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

__device__ inline Tile TileOf(uint32_t parts, uint32_t row_vectors) {
  const uint64_t warp = (uint64_t{blockIdx.x} * kBlock + threadIdx.x) / 32;
  const uint32_t part = parts == 1 ? 0 : static_cast<uint32_t>(warp % parts);
  const uint32_t vectors = 32 * row_vectors / parts;  // A whole number: PartsOf.
  return {static_cast<uint32_t>(warp / parts) * 32, part * vectors, (part + 1) * vectors, part == 0};
}

inline uint32_t PartsOf(uint64_t row_vectors) {
  uint32_t parts = 1;  // Divides 32.
  while (parts < 32 && row_vectors / parts > kVectorsOfAPart) parts *= 2;
  return parts;
}

inline int64_t BlocksOfTiles(uint32_t rows, uint32_t parts) { return BlocksOf((int64_t{rows} + 31) / 32 * parts * 32); }

// 0x80 in each byte of `words` that is 0, and 0 elsewhere. Exact: a free slot's name means nothing, so it must
// not match.
__device__ inline uint32_t ZeroBytes(uint32_t words) {
  return ~(((words & 0x7f7f7f7f) + 0x7f7f7f7f) | words | 0x7f7f7f7f);
}

struct FindScratch {
  uint4 names[32];
  uint32_t slots[32];
};

// Where the lane's name lies, or kNoSlot. Four lanes read the digests of a name's bucket, 16 bytes a load; so 8 names
// are looked up together, and the digests of all 32 are under way at once. Then each lane compares the names of the
// slots that match, of its four buckets together. With `step`, rows found are used at it: at once, while their entries
// are in L2, and without an atomic, because whoever uses a row at this step writes the same. All lanes of a warp call
// it.
__device__ inline uint32_t FindSlots(const DeviceRowIndex& index, const uint4& name, const RowCacheStep* step,
                                     FindScratch* scratch) {
  constexpr uint32_t kRounds = 4;
  constexpr uint32_t kLoads = kBucketSlots / 64;
  const uint32_t lane = threadIdx.x % 32;
  if (index.buckets == 0) return kNoSlot;
  const uint64_t now = step != nullptr ? step->step : 0;
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
        const uint32_t used = step != nullptr ? UsedScore(found[r].w, now) : found[r].w;
        if (used != found[r].w) index.entries[slots[r]].score = used;
        matches[r] = 0;
      }
      any |= matches[r];
    }
  }
  __syncwarp();
  return scratch->slots[lane];
}

inline void SetToZero(uint32_t* count, const Stream& queue) { internal::FillDevice(count, 0, sizeof(*count), queue); }

inline bool IsAligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace internal
}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_CACHE_DEVICE_CUH_
