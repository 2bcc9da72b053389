#include "server/lent_rows.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace sparrow {
namespace {

constexpr size_t kSlotsMin = 64;

}  // namespace

uint64_t LentRows::bytes() const {
  absl::ReaderMutexLock lock(&mu_);
  return slots_.size() * sizeof(Slot);
}

size_t LentRows::Find(Key key) const {
  const size_t mask = slots_.size() - 1;
  size_t at = Mix64(key) & mask;
  while (slots_[at].version != 0 && slots_[at].key != key) at = (at + 1) & mask;
  return at;
}

template <typename Visit>
void LentRows::ForEachSlot(std::span<const Key> keys, Visit visit) const {
  constexpr size_t kAhead = 16;
  const size_t mask = slots_.size() - 1;
  for (size_t i = 0; i < std::min(kAhead, keys.size()); ++i) __builtin_prefetch(&slots_[Mix64(keys[i]) & mask]);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) __builtin_prefetch(&slots_[Mix64(keys[i + kAhead]) & mask]);
    if (!visit(i, Find(keys[i]))) return;
  }
}

bool LentRows::Reserve(uint64_t more) {
  size_t size = std::max(slots_.size(), kSlotsMin);
  while (size / 4 * 3 < rows() + more) size *= 2;
  if (size == slots_.size()) return true;
  std::optional<CallMemory::Hold> memory = memory_.TryWait(size * sizeof(Slot));
  Pages pages(memory.has_value() ? size * sizeof(Slot) : 0);
  if (pages.data() == nullptr) return false;
  const std::span<const Slot> old = std::exchange(slots_, std::span(reinterpret_cast<Slot*>(pages.data()), size));
  for (const Slot& slot : old) {
    if (slot.version != 0) slots_[Find(slot.key)] = slot;
  }
  pages_ = std::move(pages);
  slots_memory_ = *std::move(memory);
  return true;
}

std::optional<uint64_t> LentRows::Lend(std::span<const Key> keys, std::span<const uint32_t> except, uint64_t step) {
  absl::MutexLock lock(&mu_);
  if (!Reserve(keys.size() - except.size())) return std::nullopt;
  uint64_t lent = 0;
  ForEachSlot(keys, [&](size_t i, size_t at) {
    if (!except.empty() && except.front() == i) {
      except = except.subspan(1);
      return true;
    }
    if (slots_[at].version == 0) ++lent;
    slots_[at] = {.key = keys[i], .version = step + 1};
    return true;
  });
  rows_.store(rows() + lent, std::memory_order_release);
  return lent;
}

void LentRows::TakeBack(std::span<const Key> keys) {
  if (keys.empty()) return;
  absl::MutexLock lock(&mu_);
  ForEachSlot(keys, [&](size_t, size_t at) {
    Erase(at);
    return true;
  });
  rows_.store(rows() - keys.size(), std::memory_order_release);
}

void LentRows::Erase(size_t hole) {
  DCHECK(slots_[hole].version != 0);
  const size_t mask = slots_.size() - 1;
  for (size_t i = (hole + 1) & mask; slots_[i].version != 0; i = (i + 1) & mask) {
    // A slot's row may move to the hole if its home is not after the hole.
    if (((i - Mix64(slots_[i].key)) & mask) < ((i - hole) & mask)) continue;
    slots_[hole] = slots_[i];
    hole = i;
  }
  slots_[hole] = Slot{};
}

void LentRows::Keep(std::span<const Key> keys, uint64_t step) {
  if (keys.empty()) return;
  absl::MutexLock lock(&mu_);
  ForEachSlot(keys, [&](size_t, size_t at) {
    DCHECK(slots_[at].version != 0);
    slots_[at].version = step + 1;
    return true;
  });
}

std::vector<uint32_t> LentRows::Older(std::span<const Key> keys, uint64_t step, size_t most) const {
  std::vector<uint32_t> older;
  if (rows() == 0 || most == 0) return older;
  absl::ReaderMutexLock lock(&mu_);
  ForEachSlot(keys, [&](size_t i, size_t at) {
    if (slots_[at].version != 0 && slots_[at].version <= step) older.push_back(static_cast<uint32_t>(i));
    return older.size() < most;
  });
  return older;
}

std::optional<size_t> LentRows::FirstLent(std::span<const Key> keys) const {
  if (rows() == 0) return std::nullopt;
  absl::ReaderMutexLock lock(&mu_);
  std::optional<size_t> first;
  ForEachSlot(keys, [&](size_t i, size_t at) {
    if (slots_[at].version != 0) first = i;
    return !first.has_value();
  });
  return first;
}

std::optional<size_t> LentRows::FirstNotLent(std::span<const Key> keys, uint64_t step) const {
  if (keys.empty()) return std::nullopt;
  absl::ReaderMutexLock lock(&mu_);
  if (slots_.empty()) return 0;
  std::optional<size_t> first;
  ForEachSlot(keys, [&](size_t i, size_t at) {
    if (slots_[at].version == 0 || slots_[at].version > step + 1) first = i;
    return !first.has_value();
  });
  return first;
}

uint64_t LentRows::CountOlder(uint64_t step) const {
  absl::ReaderMutexLock lock(&mu_);
  uint64_t older = 0;
  for (const Slot& slot : slots_) older += slot.version != 0 && slot.version <= step ? 1 : 0;
  return older;
}

}  // namespace sparrow
