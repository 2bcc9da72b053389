#include "server/call_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sparrow {
namespace {

// A sixteenth is a dozen messages of ordinary size where the promise begins (README.md); more than the largest base
// makes no call faster.
constexpr uint64_t kBaseShare = 16;
constexpr uint64_t kBaseMost = uint64_t{512} << 20;

// Few chunks (worker/grpc_transport.cc) must always have room, or no step of a job on a small server would go through.
constexpr uint64_t kWaitingLeast = uint64_t{16} << 20;
constexpr uint64_t kKeptLeast = uint64_t{4} << 20;

// Tables are swept for steps of so much of the budget: each sweep costs a walk over their index.
constexpr int64_t kStepsOfBudget = 64;

constexpr absl::Duration kWindow = absl::Seconds(10);

void RaiseTo(int64_t value, std::atomic<int64_t>* most) {
  int64_t before = most->load(std::memory_order_relaxed);
  while (before < value && !most->compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

CallMemory::Hold& CallMemory::Hold::operator=(Hold&& other) noexcept {
  if (this == &other) return *this;
  Resize(0);
  memory_ = other.memory_;
  waits_ = other.waits_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void CallMemory::Hold::Resize(uint64_t bytes) {
  if (bytes == bytes_) return;
  const int64_t change = static_cast<int64_t>(bytes) - static_cast<int64_t>(bytes_);
  if (waits_) memory_->waiting_.fetch_add(change, std::memory_order_relaxed);
  memory_->Add(change);
  bytes_ = bytes;
}

CallMemory::CallMemory(uint64_t memory_bytes, std::shared_ptr<MemoryBudget> budget)
    : budget_(std::move(budget)),
      base_bytes_(std::min(memory_bytes / kBaseShare, kBaseMost)),
      waiting_bytes_max_(std::max(budget_->bytes_max() / 2, kWaitingLeast)),
      kept_bytes_max_(std::max(base_bytes_ / static_cast<uint64_t>(Kind::kCount), kKeptLeast)) {}

CallMemory::Hold CallMemory::Use(uint64_t bytes) {
  Hold hold(this, /*waits=*/false);
  hold.Resize(bytes);
  if (ask_.load(std::memory_order_relaxed) && ask_.exchange(false, std::memory_order_relaxed)) budget_->AskForRoom();
  return hold;
}

std::optional<CallMemory::Hold> CallMemory::TryWait(uint64_t bytes) {
  int64_t waiting = waiting_.load(std::memory_order_relaxed);
  do {
    if (waiting + static_cast<int64_t>(bytes) > static_cast<int64_t>(waiting_bytes_max_)) return std::nullopt;
  } while (!waiting_.compare_exchange_weak(waiting, waiting + static_cast<int64_t>(bytes), std::memory_order_relaxed));
  Hold hold(this, /*waits=*/true);
  hold.bytes_ = bytes;
  Add(static_cast<int64_t>(bytes));
  return hold;
}

absl::Status CallMemory::TooMuchWaits(absl::string_view what, uint64_t bytes) const {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": its ", bytes, " bytes would wait for other workers' beside ", waiting_bytes(),
                   " bytes that wait already, and at most ", waiting_bytes_max_,
                   " may wait in the memory of this server; raise its --memory, add servers, or send smaller batches"));
}

bool CallMemory::Keep(Kind kind, uint64_t bytes) {
  std::atomic<int64_t>& kept = kept_[static_cast<size_t>(kind)];
  const int64_t change = static_cast<int64_t>(bytes);
  if (kept.fetch_add(change, std::memory_order_relaxed) + change > static_cast<int64_t>(kept_bytes_max_)) {
    kept.fetch_sub(change, std::memory_order_relaxed);
    return false;
  }
  Add(change);
  return true;
}

void CallMemory::Unkeep(Kind kind, uint64_t bytes) {
  kept_[static_cast<size_t>(kind)].fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  Add(-static_cast<int64_t>(bytes));
}

void CallMemory::Add(int64_t bytes) {
  const int64_t used = used_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (bytes <= 0) return;
  if (used > peak_.load(std::memory_order_relaxed)) RaiseTo(used, &peak_);
  if (WithOverhead(used) > counted_.load(std::memory_order_relaxed)) CountAtLeast(used);
}

// Beside what calls use, gRPC holds what has not arrived whole, and the allocator keeps pages that were used.
int64_t CallMemory::WithOverhead(int64_t bytes) const {
  return bytes + bytes / 8 + static_cast<int64_t>(base_bytes_ / 2);
}

// What counts if `bytes` are used.
int64_t CallMemory::Counted(int64_t bytes) const {
  const int64_t step = static_cast<int64_t>(budget_->bytes_max()) / kStepsOfBudget + 1;
  const int64_t least = static_cast<int64_t>(base_bytes_);
  const int64_t most = static_cast<int64_t>(budget_->bytes_max() / 4 * 3);  // Tables cannot train with nothing.
  return std::min(std::max((WithOverhead(bytes) + step - 1) / step * step, least), most);
}

void CallMemory::CountAtLeast(int64_t bytes) {
  const int64_t target = Counted(bytes);
  if (target <= counted_.load(std::memory_order_relaxed)) return;
  absl::MutexLock lock(&mu_);
  const int64_t more = target - counted_.load(std::memory_order_relaxed);
  if (more <= 0) return;
  counted_.store(target, std::memory_order_relaxed);
  budget_->Add(more);
  if (budget_->Over()) ask_.store(true, std::memory_order_relaxed);
}

void CallMemory::Settle(absl::Time now) {
  // What a table could not give when it was asked, because it was in use, or had too little then.
  if (budget_->used() > static_cast<int64_t>(budget_->bytes_max()) / kStepsOfBudget * (kStepsOfBudget + 1)) {
    budget_->AskForRoom();
  }
  absl::MutexLock lock(&mu_);
  const int64_t counted = counted_.load(std::memory_order_relaxed);
  if (counted == 0 || now - window_began_ < kWindow) return;
  window_began_ = now;
  const int64_t used = used_.load(std::memory_order_relaxed);
  const int64_t peak = peak_.exchange(used, std::memory_order_relaxed);
  const int64_t target = Counted(std::max({peak, peak_before_, used}));
  peak_before_ = peak;
  if (target >= counted) return;
  counted_.store(target, std::memory_order_relaxed);
  budget_->Add(target - counted);
}

}  // namespace sparrow
