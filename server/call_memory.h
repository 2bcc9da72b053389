#ifndef SPARROW_SERVER_CALL_MEMORY_H_
#define SPARROW_SERVER_CALL_MEMORY_H_

// A server's memory beside its rows: messages on their way, gradients and pulls that wait for their step, buffers that
// are kept to be used again. It counts in the tables' budget, so that rows make room for it, and what waits is bounded.
//
// What counts is the most that was in use lately: rows that came back for the moment between two steps would only have
// to leave again, and the allocator gives memory back late, too. A share of the budget (base_bytes) is taken with the
// first message and stays: ordinary calls fit in it, and move no row.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "embedding/memory_budget.h"

namespace sparrow {

// Thread-safe.
class CallMemory {
 public:
  // Bytes that count until this goes, which is before their CallMemory does. Not thread-safe.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept { *this = std::move(other); }
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { Resize(0); }

    uint64_t bytes() const { return bytes_; }
    // Whatever the limits; asks nobody for room.
    void Resize(uint64_t bytes);

   private:
    friend class CallMemory;
    Hold(CallMemory* memory, bool waits) : memory_(memory), waits_(waits) {}

    CallMemory* memory_ = nullptr;
    bool waits_ = false;
    uint64_t bytes_ = 0;
  };

  // Buffers that are kept to be used again, each kind within a share of its own.
  enum class Kind { kPullRequests, kPullResponses, kPushRequests, kGradients, kFloats, kCount };

  // `memory_bytes` is all that the server may have, `budget` what its tables share of it.
  CallMemory(uint64_t memory_bytes, std::shared_ptr<MemoryBudget> budget);
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  // Bytes that a call uses while it runs. If they are more than counted so far, tables are asked to make room, which
  // may write rows to disk: the caller holds no lock.
  Hold Use(uint64_t bytes);
  // An empty hold, for what is not known yet.
  Hold Nothing() { return Hold(this, /*waits=*/false); }

  // Bytes that wait for calls of others. None if more than waiting_bytes_max() would wait: TooMuchWaits is the error.
  // Asks nobody for room; the next Use does.
  std::optional<Hold> TryWait(uint64_t bytes);
  absl::Status TooMuchWaits(absl::string_view what, uint64_t bytes) const;

  // Whether a buffer that nobody uses may be kept; if so it counts, until Unkeep.
  bool Keep(Kind kind, uint64_t bytes);
  void Unkeep(Kind kind, uint64_t bytes);

  // Gives back to the tables what was not used for a while. To be called now and then.
  void Settle(absl::Time now);

  uint64_t used_bytes() const { return NotNegative(used_); }
  uint64_t waiting_bytes() const { return NotNegative(waiting_); }
  uint64_t waiting_bytes_max() const { return waiting_bytes_max_; }
  // In the tables' budget: what was used lately and some more, unless that is more than three quarters of the budget.
  uint64_t counted_bytes() const { return NotNegative(counted_); }

 private:
  static uint64_t NotNegative(const std::atomic<int64_t>& bytes) {
    const int64_t now = bytes.load(std::memory_order_relaxed);
    return now > 0 ? static_cast<uint64_t>(now) : 0;
  }

  void Add(int64_t bytes);
  void CountAtLeast(int64_t bytes);
  int64_t WithOverhead(int64_t bytes) const;
  int64_t Counted(int64_t bytes) const;

  const std::shared_ptr<MemoryBudget> budget_;  // Shared with the shard, whose last messages may outlive it.
  const uint64_t base_bytes_;
  const uint64_t waiting_bytes_max_;
  const uint64_t kept_bytes_max_;  // Of each kind.

  absl::Mutex mu_;
  absl::Time window_began_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int64_t peak_before_ ABSL_GUARDED_BY(mu_) = 0;  // In the window before this one.

  // Relaxed: sums for decisions that may be a little late; no other memory depends on them.
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> waiting_{0};  // Part of used_.
  std::atomic<int64_t> peak_{0};     // Of used_, in this window.
  std::atomic<int64_t> counted_{0};  // Changed under mu_.
  std::atomic<bool> ask_{false};     // counted_ has grown since tables were asked.
  std::array<std::atomic<int64_t>, static_cast<size_t>(Kind::kCount)> kept_{};  // Part of used_.
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_CALL_MEMORY_H_
