#ifndef SPARROW_SERVER_TABLE_KEY_SET_H_
#define SPARROW_SERVER_TABLE_KEY_SET_H_

// An exact set of (table, key) pairs that is filled and emptied once a step, and keeps its memory meanwhile: absl's
// sets give theirs back when they are cleared.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "embedding/partition.h"

namespace sparrow {

// Not thread-safe.
class TableKeySet {
 public:
  bool empty() const { return size_ == 0; }
  uint64_t bytes() const { return slots_.capacity() * sizeof(Slot); }

  bool Contains(uint32_t table, Key key) const { return size_ > 0 && IsUsed(slots_[Find(table, key)]); }

  void Insert(uint32_t table, std::span<const Key> keys) {
    while (slots_.size() < 2 * (size_ + keys.size())) Grow();
    for (const Key key : keys) {
      Slot& slot = slots_[Find(table, key)];
      if (IsUsed(slot)) continue;
      slot = {.key = key, .table = table, .generation = generation_};
      ++size_;
    }
  }

  void Clear() {
    size_ = 0;
    if (generation_ == std::numeric_limits<uint32_t>::max()) {
      std::fill(slots_.begin(), slots_.end(), Slot{});
      generation_ = 0;
    }
    ++generation_;
  }

 private:
  struct Slot {
    Key key = 0;
    uint32_t table = 0;
    uint32_t generation = 0;  // Used if it is the present one.
  };

  bool IsUsed(const Slot& slot) const { return slot.generation == generation_; }

  // The slot of the pair, or the free one where it belongs. REQUIRES: slots_ has a free one.
  size_t Find(uint32_t table, Key key) const {
    size_t at = RandomBits(table, key) & (slots_.size() - 1);
    while (IsUsed(slots_[at]) && (slots_[at].key != key || slots_[at].table != table)) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  void Grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(std::max<size_t>(16, 2 * slots_.size())));
    for (const Slot& slot : old) {
      if (IsUsed(slot)) slots_[Find(slot.table, slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;  // Open addressing, a power of two, at most half full.
  size_t size_ = 0;
  uint32_t generation_ = 1;
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_TABLE_KEY_SET_H_
