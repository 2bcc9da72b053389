#ifndef SPARROW_EMBEDDING_ROW_CACHE_H_
#define SPARROW_EMBEDDING_ROW_CACHE_H_

// A cache of row records in front of the servers: the contract of both halves, and the CPU half. After equal calls the
// halves hold equal rows in equal slots; all of it is deterministic. The CUDA half is embedding/row_cache_gpu.h.
//
// One cache holds rows of all tables that share a layout. A row lies in a slot, a fixed place for its record, so that
// kernels work on it there by number. Slots come in buckets of 128, and a row can only lie in the bucket that its name
// is hashed to. A byte for each slot, the digest, is 8 bits of its row's name; a look-up reads the bucket's 128 digests
// together, and then the names of those that match (a false match in 255).
//
// Why one bucket a row and not a choice of two: the cache is full for most of its life, and then two buckets serve
// eviction only, while every look-up would read both. The load of a bucket spreads like sqrt(128): where rows that are
// pinned at once would fill 80 % of the slots, 1 in 8,000 of them finds no slot, at 90 % 5 in 1,000. Why 128: an H200
// finds rows in buckets of 64 by 2 to 11 % faster, but inserts into them by up to 6 % slower, and they refuse 2 in
// 1,000 at 80 %.
//
// Eviction: a row that is inserted takes the free slot of lowest number in its bucket; where none is free, that of the
// row that was used least recently (the lowest step), among those the one used in the fewest steps, among those the one
// in the lowest slot. So it is with rows that were not used for more than steps_kept steps; after them come the others,
// those used in few steps first (1, 2 or 3, 4 to 7, ...), and of equal ones those last used at the same steps, in an
// order of steps that looks random. Most rows of a click log are used once or twice in the time that the cache holds:
// if the least recent one always went, then in files that are read again and again none of them would ever be found,
// and this way the part of them that has room is. Rows that are pinned, which means that they were used at a step >=
// oldest_in_flight, stay, and so do rows inserted by the same call. A row that finds no slot is refused: it gets
// kNoSlot and is listed.
//
// Steps are compared modulo 2^24. A row that is not used for 2^23 steps seems used lately, and stays for as long again;
// a row in use is pinned whatever its past.

#include <cstdint>
#include <span>
#include <vector>

#include "base/cuda/host_device.h"
#include "embedding/row_layout.h"
#include "embedding/row_name.h"

namespace sparrow {

constexpr uint32_t kNoSlot = 0xffffffff;
constexpr uint32_t kBucketSlots = 128;

struct RowCacheOptions {
  RowLayout layout;           // Of float32 storage.
  uint64_t bytes = 0;         // Of all slots: records, names, digests, marks. 0 is legal: a cache that refuses.
  uint32_t staging_rows = 0;  // Slots more, behind the cache's and beyond `bytes`, which are the caller's: rows that
                              // were refused can lie there while kernels work on rows by slot.
  uint32_t batch_rows = 0;    // Names of one call, and slots of one call of TakeDirty, at most.
};

// Of the batch that a call works for.
struct RowCacheStep {
  uint64_t step = 0;              // Rows found or inserted are used at it.
  uint64_t oldest_in_flight = 0;  // Rows used at it or later are pinned.
  uint64_t steps_kept = 0;        // See above; 0: the least recently used row goes, however often it was used.
};

// What one of them costs.
inline uint64_t RowCacheSlotBytes(const RowLayout& layout) {
  constexpr uint64_t kIndexBytes = sizeof(RowName) + 2;  // A slot's name with its score, digest, dirty mark.
  return layout.slot_bytes() + kIndexBytes;
}

// The buckets that the budget pays for, 2^24 - 1 at most.
inline uint32_t RowCacheBuckets(const RowCacheOptions& options) {
  const uint64_t buckets = options.bytes / (kBucketSlots * RowCacheSlotBytes(options.layout));
  constexpr uint64_t kMost = (1u << 24) - 1;
  return static_cast<uint32_t>(buckets < kMost ? buckets : kMost);
}

// The digest is never 0, which marks a free slot.
SPARROW_HOST_DEVICE inline uint32_t CacheBucketOf(uint64_t name_bits, uint32_t buckets) {
  return static_cast<uint32_t>((name_bits >> 32) * buckets >> 32);
}
SPARROW_HOST_DEVICE inline uint8_t CacheDigestOf(uint64_t name_bits) {
  return static_cast<uint8_t>(1 + ((name_bits & 0xffff) * 255 >> 16));
}

// A slot's score: above, the last step that its row was used at, modulo 2^24; in the lowest 8 bits the number of steps
// it was used at, which stops at 255. 0: the slot is free.
constexpr uint32_t kHalfRange = uint32_t{1} << 23;
SPARROW_HOST_DEVICE inline uint32_t FirstScore(uint64_t step) { return static_cast<uint32_t>(step) << 8 | 1; }
// kHalfRange: used at `step`. Less: earlier.
SPARROW_HOST_DEVICE inline uint32_t RecencyOf(uint32_t score, uint64_t step) {
  return ((score >> 8) - static_cast<uint32_t>(step) + kHalfRange) & 0xffffff;
}
// After a use; the same however often the row is used at that step, and none for a step gone by.
SPARROW_HOST_DEVICE inline uint32_t UsedScore(uint32_t score, uint64_t step) {
  if (RecencyOf(score, step) >= kHalfRange) return score;
  const uint32_t uses = score & 0xff;
  return static_cast<uint32_t>(step) << 8 | (uses < 0xff ? uses + 1 : uses);
}

// The lowest is evicted first, of equal ones that in the lowest slot; free slots have 0.
constexpr uint32_t kNeverEvicted = 0xffffffff;
// The recency from which on rows are pinned.
SPARROW_HOST_DEVICE inline uint32_t PinnedRecency(const RowCacheStep& step) {
  if (step.oldest_in_flight > step.step) {
    const uint64_t ahead = step.oldest_in_flight - step.step;
    return ahead < kHalfRange ? kHalfRange + static_cast<uint32_t>(ahead) : 2 * kHalfRange;  // 2 *: none.
  }
  const uint64_t behind = step.step - step.oldest_in_flight;
  return behind < kHalfRange ? kHalfRange - static_cast<uint32_t>(behind) : 0;  // 0: all.
}
// That from which on they are not evicted as the least recently used ones.
SPARROW_HOST_DEVICE inline uint32_t KeptRecency(const RowCacheStep& step) {
  if (step.steps_kept == 0) return 2 * kHalfRange;
  return step.steps_kept < kHalfRange ? kHalfRange - static_cast<uint32_t>(step.steps_kept) : 0;
}
SPARROW_HOST_DEVICE inline uint32_t EvictionRank(uint32_t score, uint64_t step, uint32_t pinned_recency,
                                                 uint32_t kept_recency) {
  if (score == 0) return 0;
  const uint32_t recency = RecencyOf(score, step);
  if (recency >= pinned_recency) return kNeverEvicted;
  if (recency < kept_recency) return recency << 8 | (score & 0xff);
  uint32_t uses = 0;  // The power of two.
  for (uint32_t i = 1; i < 8; ++i) uses += (score & 0xff) >> i != 0 ? 1 : 0;
  constexpr uint32_t kGoldenRatio = 0x9e3779b1;
  return 0x80000000u | uses << 28 | ((score >> 8) * kGoldenRatio >> 4 & 0x0ffffff0u);
}

// What Insert did beside inserting, in the order in which it goes through the names: by bucket, within one as given.
struct EvictedRows {
  std::vector<RowName> names;     // [evicted]
  std::vector<char> records;      // [evicted, slot_bytes]
  std::vector<uint8_t> dirty;     // [evicted]: 1: changed since it was inserted or last taken by TakeDirty.
  std::vector<uint32_t> refused;  // Positions in the names given of those that got no slot.
};

struct DirtyRows {
  std::vector<RowName> names;
  std::vector<char> records;  // [names, slot_bytes]
};

// The CPU half: the reference, in plain loops. Not thread-safe.
class RowCacheCpu {
 public:
  explicit RowCacheCpu(const RowCacheOptions& options);

  const RowLayout& layout() const { return layout_; }
  uint32_t slots() const { return static_cast<uint32_t>(names_.size()); }
  // slots() + i: the i-th staging row.
  char* record(uint32_t slot) { return records_.data() + slot * layout_.slot_bytes(); }

  // slots[i] = where names[i] lies, or kNoSlot. The rows found are used at step->step; with nullptr nothing changes.
  // Names may repeat. Rows of names found are copied to values, unless it is empty; the others' places there stay.
  void Find(std::span<const RowName> names, const RowCacheStep* step, std::span<uint32_t> slots /*[names]*/,
            std::span<float> values = {} /*[names, dim]*/);

  // Rows that are not in the cache get slots, in a bucket in the order of `names`, and are clean, used at step.step.
  // REQUIRES: names unique, and none of them in the cache.
  EvictedRows Insert(std::span<const RowName> names, std::span<const char> records /*[names, slot_bytes]*/,
                     const RowCacheStep& step, std::span<uint32_t> slots /*[names]*/);

  // Rows that were changed. Slots may repeat; kNoSlot and staging rows are passed over. REQUIRES: the others are not
  // free.
  void MarkDirty(std::span<const uint32_t> slots);

  // The first `rows_max` dirty rows of slots [first_slot, first_slot + slots), in the order of slots. They stay, clean.
  DirtyRows TakeDirty(uint32_t first_slot, uint32_t slots, uint32_t rows_max);

  // Of each slot, to compare with the CUDA half. Names of free slots mean nothing.
  std::span<const RowName> names() const { return names_; }
  std::span<const uint32_t> scores() const { return scores_; }
  std::span<const uint8_t> dirty() const { return dirty_; }

 private:
  uint32_t SlotOf(const RowName& name) const;

  RowLayout layout_;
  uint32_t batch_rows_;
  uint32_t buckets_;
  std::vector<char> records_;     // [slots + staging_rows, slot_bytes]
  std::vector<RowName> names_;    // [slots]
  std::vector<uint8_t> digests_;  // [slots]; 0: free.
  std::vector<uint32_t> scores_;  // [slots]; 0: free.
  std::vector<uint8_t> dirty_;    // [slots]
};

// The names without a slot, in order, and where they stand in `names`: what must be fetched after Find.
struct MissingRows {
  std::vector<RowName> names;
  std::vector<uint32_t> positions;
};
MissingRows ListMissing(std::span<const RowName> names, std::span<const uint32_t> slots /*[names]*/);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_CACHE_H_
