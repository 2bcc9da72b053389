#ifndef SPARROW_EMBEDDING_MEMORY_BUDGET_H_
#define SPARROW_EMBEDDING_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace sparrow {

// Bytes of DRAM that the tables of one server may hold together. A table asks before it takes memory; a tiered table
// that is refused evicts rows of its own, and where another table holds much more than it, asks that one to give some
// back, so that tables which want more than there is end up with about equal shares. Thread-safe.
class MemoryBudget {
 public:
  // A table that can give memory back.
  class Holder {
   public:
    virtual ~Holder() = default;
    virtual uint64_t HeldBytes() const = 0;
    // Gives about so many bytes back: now, or, if it is busy, soon. Never waits for the holder's own locks.
    virtual void GiveBack(uint64_t bytes) = 0;
  };

  explicit MemoryBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Takes (or, negative, returns) bytes whatever the limit.
  void Add(int64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }

  // Takes as many of `count` units of unit_bytes as fit, and returns how many.
  uint64_t TakeUpTo(uint64_t count, uint64_t unit_bytes);

  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t bytes_max() const { return bytes_max_; }
  bool Over() const { return used() > static_cast<int64_t>(bytes_max_); }

  // `holder` lives until it is unregistered.
  void Register(Holder* holder);
  void Unregister(Holder* holder);

  // Asks the largest other holder for memory if it holds at least a quarter more than `holder`. The caller holds no
  // lock that a holder needs.
  void AskLargest(const Holder* holder);

  // If more is used than there is, because somebody took memory whatever the limit: asks the holders to give it back,
  // each according to what it holds. The caller holds no lock that a holder needs.
  void AskForRoom();

 private:
  const uint64_t bytes_max_;

  absl::Mutex mu_;
  std::vector<Holder*> holders_ ABSL_GUARDED_BY(mu_);

  // Relaxed: a sum for decisions that may be a little late; no other memory depends on it.
  std::atomic<int64_t> used_{0};
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_MEMORY_BUDGET_H_
