#ifndef SPARROW_EMBEDDING_ROW_INDEX_H_
#define SPARROW_EMBEDDING_ROW_INDEX_H_

// Key -> slot of one stripe: open addressing with linear probing, 16 bytes an entry. An entry is free if its flags are
// 0, so no key is reserved; erasing shifts the entries behind back, so there are no tombstones and look-ups never
// degrade. The key stands in the entry and not beside the row, so a look-up costs one cache line here and then the row
// alone.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "embedding/page_pool.h"
#include "embedding/partition.h"

namespace sparrow {

// Not thread-safe.
class RowIndex {
 public:
  enum Flag : uint32_t {
    kUsed = 1,        // The entry holds a row.
    kReferenced = 2,  // Pulled for training, again, since it came or the clock hand passed last.
    kDirty = 4,       // Differs from the cold tier's copy, or there is none.
    kInCold = 8,      // The cold tier has a row of this key (perhaps an older one).
    kChosen = 16,     // By the clock, to be evicted.
    kWriting = 32,    // A copy is on its way to the cold tier. Set together with kChosen.
  };
  struct Entry {
    Key key;
    uint32_t slot;
    uint32_t flags;
  };
  static_assert(sizeof(Entry) == 16);

  static constexpr uint64_t kCapacityMin = 8;

  // Unusable until Reset.
  RowIndex() = default;

  // Makes it empty, at the least capacity, with memory of `pool`, which outlives it.
  void Reset(PagePool* pool) {
    pool_ = pool;
    block_ = pool->Take(kCapacityMin * sizeof(Entry));
    CHECK(block_.data() != nullptr) << "no memory";
    mask_ = kCapacityMin - 1;
    size_ = 0;
  }

  // Of a key; the low 8 bits choose the stripe, the top 12 the bucket (partition.h), those between the position here.
  static uint64_t Hash(Key key) { return Mix64(key); }

  uint64_t size() const { return size_; }
  uint64_t capacity() const { return mask_ + 1; }
  uint64_t bytes() const { return capacity() * sizeof(Entry); }
  // Rows that may still be inserted at this capacity: three quarters full at most.
  uint64_t Room() const { return capacity() / 4 * 3 - size_; }

  void Prefetch(uint64_t hash) const { __builtin_prefetch(&entries()[Home(hash)]); }

  // The entry of key, or null. Valid until the next Insert, Erase or Resize.
  Entry* Find(Key key, uint64_t hash) {
    for (uint64_t i = Home(hash);; i = (i + 1) & mask_) {
      Entry& entry = entries()[i];
      if (entry.flags == 0) return nullptr;
      if (entry.key == key) return &entry;
    }
  }

  // REQUIRES: key is absent, Room() > 0, flags has kUsed.
  Entry* Insert(Key key, uint64_t hash, uint32_t slot, uint32_t flags) {
    DCHECK(Room() > 0 && (flags & kUsed) != 0);
    ++size_;
    return Place({.key = key, .slot = slot, .flags = flags}, hash);
  }

  // REQUIRES: key is present.
  void Erase(Key key) {
    Entry* const erased = Find(key, Hash(key));
    DCHECK(erased != nullptr);
    uint64_t hole = static_cast<uint64_t>(erased - entries());
    for (uint64_t i = (hole + 1) & mask_; entries()[i].flags != 0; i = (i + 1) & mask_) {
      // An entry may move to the hole if its home is not after the hole.
      if (((i - Home(Hash(entries()[i].key))) & mask_) < ((i - hole) & mask_)) continue;
      entries()[hole] = entries()[i];
      hole = i;
    }
    entries()[hole] = Entry{};
    --size_;
  }

  // Capacity becomes `capacity`. False, and nothing changes, if the machine has no memory.
  // REQUIRES: a power of two of at least kCapacityMin that leaves room for size().
  bool Resize(uint64_t capacity) {
    DCHECK(std::has_single_bit(capacity) && size_ <= capacity / 4 * 3);
    PagePool::Block block = pool_->Take(capacity * sizeof(Entry));
    if (block.data() == nullptr) return false;
    std::swap(block_, block);
    mask_ = capacity - 1;
    const Entry* const old = reinterpret_cast<const Entry*>(block.data());
    for (const Entry& entry : std::span(old, block.bytes() / sizeof(Entry))) {
      if (entry.flags != 0) Place(entry, Hash(entry.key));
    }
    return true;
  }

  // All entries, free ones (flags 0) too.
  std::span<Entry> all() { return {entries(), capacity()}; }

 private:
  Entry* entries() const { return reinterpret_cast<Entry*>(block_.data()); }
  uint64_t Home(uint64_t hash) const { return (hash >> 8) & mask_; }
  Entry* Place(const Entry& entry, uint64_t hash) {
    uint64_t i = Home(hash);
    while (entries()[i].flags != 0) i = (i + 1) & mask_;
    entries()[i] = entry;
    return &entries()[i];
  }

  PagePool* pool_ = nullptr;
  PagePool::Block block_;
  uint64_t mask_ = 0;
  uint64_t size_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_INDEX_H_
