#include "embedding/memory_budget.h"

#include <algorithm>

namespace sparrow {

uint64_t MemoryBudget::TakeUpTo(uint64_t count, uint64_t unit_bytes) {
  int64_t used = used_.load(std::memory_order_relaxed);
  while (true) {
    const int64_t room = std::max<int64_t>(0, static_cast<int64_t>(bytes_max_) - used);
    const uint64_t taken = std::min(count, static_cast<uint64_t>(room) / unit_bytes);
    if (taken == 0) return 0;
    if (used_.compare_exchange_weak(used, used + static_cast<int64_t>(taken * unit_bytes), std::memory_order_relaxed)) {
      return taken;
    }
  }
}

void MemoryBudget::Register(Holder* holder) {
  absl::MutexLock lock(&mu_);
  holders_.push_back(holder);
}

void MemoryBudget::Unregister(Holder* holder) {
  absl::MutexLock lock(&mu_);
  holders_.erase(std::remove(holders_.begin(), holders_.end(), holder), holders_.end());
}

void MemoryBudget::AskLargest(const Holder* holder) {
  constexpr uint64_t kShare = 32;  // Of what the largest holds: enough to be worth its sweep.
  absl::MutexLock lock(&mu_);
  Holder* largest = nullptr;
  uint64_t largest_bytes = 0;
  for (Holder* other : holders_) {
    if (other == holder || other->HeldBytes() <= largest_bytes) continue;
    largest = other;
    largest_bytes = other->HeldBytes();
  }
  if (largest == nullptr || largest_bytes / 5 * 4 <= holder->HeldBytes()) return;
  largest->GiveBack(largest_bytes / kShare);
}

void MemoryBudget::AskForRoom() {
  constexpr uint64_t kShare = 64;  // Of all that is held: of a smaller holder a sweep is not worth it.
  absl::MutexLock lock(&mu_);
  const int64_t over = used() - static_cast<int64_t>(bytes_max_);
  if (over <= 0) return;
  uint64_t all = 0;
  for (const Holder* holder : holders_) all += holder->HeldBytes();
  for (Holder* holder : holders_) {
    const uint64_t held = holder->HeldBytes();
    if (held == 0 || held < all / kShare) continue;
    const double share = std::min(0.5, static_cast<double>(over) / static_cast<double>(all));
    holder->GiveBack(static_cast<uint64_t>(share * static_cast<double>(held)));
  }
}

}  // namespace sparrow
