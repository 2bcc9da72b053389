#ifndef SPARROW_EMBEDDING_ROW_CACHE_GPU_H_
#define SPARROW_EMBEDDING_ROW_CACHE_GPU_H_

// The CUDA half of embedding/row_cache.h, whose contract it keeps bit for bit. Needs CUDA and base/cuda only.
//
// After Make nothing is allocated and nothing waits: calls are queued on a stream, and a CUDA graph can record them.
// Steps and counts lie in GPU memory. All arrays are in GPU memory. The calls of one cache, and the kernels that work
// on its records, run one after the other: on one stream, or ordered by events. Where names.count is smaller than
// names.max, what belongs to the names behind it is not written.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "embedding/row_cache.h"
#include "embedding/row_name.h"
#include "embedding/sparse_update_gpu.h"

namespace sparrow {

// Of a slot: its row's name and score (row_cache.h), which are read and written together. Names of free slots mean
// nothing.
struct alignas(16) CacheEntry {
  uint64_t key;
  uint32_t table;
  uint32_t score;  // 0: the slot is free.
};

// Of all slots.
struct DeviceRowIndex {
  uint32_t buckets = 0;        // Of kBucketSlots slots.
  uint8_t* digests = nullptr;  // 0: free.
  uint8_t* dirty = nullptr;
  CacheEntry* entries = nullptr;
};

// What Insert writes beside slots: row_cache.h EvictedRows. Each of [names.max].
struct DeviceEvicted {
  RowName* names = nullptr;
  char* records = nullptr;  // [.., slot_bytes], at a multiple of 16.
  uint8_t* dirty = nullptr;
  uint32_t* count = nullptr;  // [1]
  uint32_t* refused = nullptr;
  uint32_t* refused_count = nullptr;  // [1]
};

// What TakeDirty writes: row_cache.h DirtyRows.
struct DeviceDirty {
  RowName* names = nullptr;  // [rows_max]
  char* records = nullptr;   // [rows_max, slot_bytes], at a multiple of 16.
  uint32_t rows_max = 0;
  uint32_t* count = nullptr;  // [1]: rows written. rows_max: there may be more in these slots.
};

// What ListMissing writes: row_cache.h MissingRows. Each of [names.max].
struct DeviceMissing {
  RowName* names = nullptr;
  uint32_t* positions = nullptr;
  uint32_t* count = nullptr;  // [1]
};

class RowCacheGpu {
 public:
  // nullopt: the GPU has not Bytes(options) free. Queues the clearing of the slots on `queue`.
  static std::optional<RowCacheGpu> Make(const RowCacheOptions& options, const Stream& queue);
  // GPU memory that Make takes: the slots', the staging rows' and the workspace's, which is about 60 bytes for each of
  // batch_rows.
  static uint64_t Bytes(const RowCacheOptions& options);

  uint32_t slots() const { return index_.buckets * kBucketSlots; }
  // With the staging rows.
  DeviceRecords records() { return {records_, options_.layout}; }
  const DeviceRowIndex& index() const { return index_; }

  // values: nullptr, or [names.max, dim]; it may not overlap the cache.
  void Find(const DeviceNames& names, const RowCacheStep* step, uint32_t* slots /*[names.max]*/, float* values,
            const Stream& queue);

  // records: [names.max, slot_bytes], at a multiple of 16.
  void Insert(const DeviceNames& names, const char* records, const RowCacheStep* step, uint32_t* slots /*[names.max]*/,
              const DeviceEvicted& evicted, const Stream& queue);

  // slots: [max], of which the first *count are meant, or with nullptr all.
  void MarkDirty(const uint32_t* slots, uint32_t max, const uint32_t* count, const Stream& queue);

  void TakeDirty(uint32_t first_slot, uint32_t slots, const DeviceDirty& dirty, const Stream& queue);

  void ListMissing(const DeviceNames& names, const uint32_t* slots /*[names.max]*/, const DeviceMissing& missing,
                   const Stream& queue);

 private:
  RowCacheGpu(const RowCacheOptions& options, DeviceBuffer<char> memory);

  RowCacheOptions options_;
  size_t library_bytes_;       // Of the workspace: what sort and scan need.
  DeviceBuffer<char> memory_;  // Records, index_, workspace.
  char* records_;
  DeviceRowIndex index_;
  char* workspace_;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_CACHE_GPU_H_
