#ifndef SPARROW_SERVER_LENT_ROWS_H_
#define SPARROW_SERVER_LENT_ROWS_H_

// The rows of one table that the workers hold and update themselves: which they are, and how many steps the server's
// copy of each has seen. What lies between, only the workers know.

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "embedding/pages.h"
#include "embedding/partition.h"
#include "server/call_memory.h"

namespace sparrow {

// Thread-safe. Takes 21 to 43 bytes a row once there are some, which count as what waits (server/call_memory.h). They
// lie on huge pages, and each batch fetches the slots of the keys to come, because a look-up is little but the wait for
// its slot.
class LentRows {
 public:
  explicit LentRows(CallMemory* memory) : memory_(*memory) {}  // Outlives it.

  uint64_t rows() const { return rows_.load(std::memory_order_acquire); }
  uint64_t bytes() const;

  // The copies are as of `step` steps; rows that are lent already stay so. Returns how many were not. Nothing if there
  // is no memory: no row is lent then. `except` are positions in `keys`, ascending, of rows that are left out.
  std::optional<uint64_t> Lend(std::span<const Key> keys, std::span<const uint32_t> except, uint64_t step);
  // REQUIRES, for both: all are lent.
  void TakeBack(std::span<const Key> keys);
  void Keep(std::span<const Key> keys, uint64_t step);  // The copies are as of `step` steps now.

  // Positions in `keys`, ascending, of the rows that are lent and whose copies are older than `step` steps; at most
  // `most` of them.
  std::vector<uint32_t> Older(std::span<const Key> keys, uint64_t step, size_t most = SIZE_MAX) const;
  // The first position of a key that is lent; and of one that is not, or was lent for a later step than `step`.
  std::optional<size_t> FirstLent(std::span<const Key> keys) const;
  std::optional<size_t> FirstNotLent(std::span<const Key> keys, uint64_t step) const;
  // How many rows have a copy older than `step` steps. Looks at all.
  uint64_t CountOlder(uint64_t step) const;

 private:
  struct Slot {
    Key key = 0;
    uint64_t version = 0;  // Steps that the copy has seen, and 1. 0: the slot is free.
  };

  // The slot of the key, or the free one where it belongs. REQUIRES: there is a free one.
  size_t Find(Key key) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Calls visit(i, slot) for each key in turn, until one returns false.
  template <typename Visit>
  void ForEachSlot(std::span<const Key> keys, Visit visit) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool Reserve(uint64_t more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Erase(size_t hole) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  CallMemory& memory_;
  mutable absl::Mutex mu_;
  // Open addressing, a power of two, at most three quarters full. Erasing moves those behind back (RowIndex).
  Pages pages_ ABSL_GUARDED_BY(mu_);
  std::span<Slot> slots_ ABSL_GUARDED_BY(mu_);  // In pages_.
  CallMemory::Hold slots_memory_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> rows_{0};  // Changed under mu_. Looked at without it by jobs that lend nothing.
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_LENT_ROWS_H_
