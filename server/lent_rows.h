#ifndef SPARROW_SERVER_LENT_ROWS_H_
#define SPARROW_SERVER_LENT_ROWS_H_

// The rows of one table that the workers hold and update themselves: which they are, and how many steps the server's
// copy of each has seen. What lies between, only the workers know.

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "embedding/batch_plan.h"
#include "embedding/page_pool.h"
#include "server/call_memory.h"

namespace sparrow {

// Thread-safe. Takes 21 to 43 bytes a row once there are some, which count as what waits (server/call_memory.h). They
// lie on huge pages, and each batch fetches the slots of the keys to come, because a look-up is little but the wait for
// its slot.
//
// Rows are spread over stripes, each with a lock. A call is about one group of a batch's plan, `stripe` of any plan for
// the keys: its positions in `keys`, all of one stripe here as well.
class LentRows {
 public:
  using Keys = std::span<const Key>;
  using Group = std::span<const uint32_t>;

  explicit LentRows(CallMemory* memory) : memory_(*memory) {}  // Outlives it.

  uint64_t rows() const { return rows_.load(std::memory_order_acquire); }
  uint64_t bytes() const;

  // The copies are as of `step` steps; rows that are lent already stay so. Returns how many were not. Nothing if there
  // is no memory: no row of the group is lent then. With `except`, those whose except[position] is not 0 are left out.
  std::optional<uint64_t> Lend(uint32_t stripe, Keys keys, Group group, std::span<const uint8_t> except, uint64_t step);
  // REQUIRES, for both: all are lent.
  void TakeBack(uint32_t stripe, Keys keys, Group group);
  void Keep(uint32_t stripe, Keys keys, Group group, uint64_t step);  // The copies are as of `step` steps now.

  // Sets older[position] to 1 for each row that is lent and whose copy is older than `step` steps, and returns how many
  // there are.
  uint64_t MarkOlder(uint32_t stripe, Keys keys, Group group, uint64_t step, std::span<uint8_t> older) const;
  // The first position of a key that is lent; and of one that is not, or was lent for a later step than `step`.
  std::optional<uint32_t> FirstLent(uint32_t stripe, Keys keys, Group group) const;
  std::optional<uint32_t> FirstNotLent(uint32_t stripe, Keys keys, Group group, uint64_t step) const;
  // How many rows have a copy older than `step` steps. Looks at all.
  uint64_t CountOlder(uint64_t step) const;

 private:
  struct Slot {
    Key key;
    uint64_t version;  // Steps that the copy has seen, and 1. 0: the slot is free.
  };
  struct alignas(64) Stripe {
    mutable absl::Mutex mu;
    // Open addressing, a power of two, at most three quarters full. Erasing moves those behind back (RowIndex).
    PagePool::Block block ABSL_GUARDED_BY(mu);
    std::span<Slot> slots ABSL_GUARDED_BY(mu);  // In `block`.
    uint64_t rows ABSL_GUARDED_BY(mu) = 0;
    CallMemory::Hold memory ABSL_GUARDED_BY(mu);

    // The slot of the key, or the free one where it belongs. REQUIRES: there is a free one.
    size_t Find(Key key) const ABSL_SHARED_LOCKS_REQUIRED(mu);
    // Calls visit(position, slot) for each of the group in turn, until one returns false.
    template <typename Visit>
    void ForEachSlot(Keys keys, Group group, Visit visit) const ABSL_SHARED_LOCKS_REQUIRED(mu);
    void Erase(size_t hole) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  };

  // Every plan has at least so many, and those of a group differ in no bit that counts here.
  static constexpr uint32_t kStripes = BatchPlan::kStripesMin;

  bool Reserve(uint64_t more, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  CallMemory& memory_;
  PagePool pool_;
  std::array<Stripe, kStripes> stripes_;
  std::atomic<uint64_t> rows_{0};  // Changed under a stripe's lock. Looked at without it by jobs that lend nothing.
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_LENT_ROWS_H_
