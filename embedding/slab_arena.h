#ifndef SPARROW_EMBEDDING_SLAB_ARENA_H_
#define SPARROW_EMBEDDING_SLAB_ARENA_H_

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "embedding/pages.h"

namespace sparrow {

// Slots of one size, numbered from 0, in slabs that double: no allocation a row, no row ever moves by itself, and an
// empty table is small. Slots are handed out in order, so those below slots() are all the memory in use.
//
// Thread-safe, but for Truncate. A slot may be used by whoever took it, and by others who learnt of it from that thread
// under a lock.
class SlabArena {
 public:
  explicit SlabArena(uint64_t slot_bytes);

  // Appends `count` new slots to *slots. False, and none, if the machine has no memory or 2^32 slots are out.
  bool Take(uint32_t count, std::vector<uint32_t>* slots);

  // Slots `slots` and above are forgotten and their memory goes back to the machine. REQUIRES: nobody else is inside.
  void Truncate(uint32_t slots);

  char* At(uint32_t slot) const {
    const int slab = SlabOf(slot);
    return slabs_[slab].data() + (slot - FirstSlot(slab)) * slot_bytes_;
  }

  uint32_t slots() const {
    absl::MutexLock lock(&mu_);
    return slots_;
  }
  uint64_t slot_bytes() const { return slot_bytes_; }

 private:
  static constexpr int kSlabsMax = 33;

  // Slab k has 2^(k + shift_) slots, and begins after those before it.
  int SlabOf(uint32_t slot) const { return std::bit_width((uint64_t{slot} >> shift_) + 1) - 1; }
  uint64_t FirstSlot(int slab) const { return ((uint64_t{1} << slab) - 1) << shift_; }

  const uint64_t slot_bytes_;
  const int shift_;

  mutable absl::Mutex mu_;
  uint32_t slots_ ABSL_GUARDED_BY(mu_) = 0;

  // Written under mu_ before a slot of the slab is handed out; read without.
  std::array<Pages, kSlabsMax> slabs_;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_SLAB_ARENA_H_
