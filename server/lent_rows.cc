#include "server/lent_rows.h"

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

bool LentRows::Reserve(uint64_t more) {
  size_t size = std::max(slots_.size(), kSlotsMin);
  while (size / 4 * 3 < rows() + more) size *= 2;
  if (size == slots_.size()) return true;
  std::optional<CallMemory::Hold> memory = memory_.TryWait(size * sizeof(Slot));
  if (!memory.has_value()) return false;
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(size));
  for (const Slot& slot : old) {
    if (slot.version != 0) slots_[Find(slot.key)] = slot;
  }
  slots_memory_ = *std::move(memory);
  return true;
}

std::optional<uint64_t> LentRows::Lend(std::span<const Key> keys, std::span<const uint32_t> except, uint64_t step) {
  absl::MutexLock lock(&mu_);
  if (!Reserve(keys.size() - except.size())) return std::nullopt;
  uint64_t lent = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!except.empty() && except.front() == i) {
      except = except.subspan(1);
      continue;
    }
    Slot& slot = slots_[Find(keys[i])];
    if (slot.version == 0) ++lent;
    slot = {.key = keys[i], .version = step + 1};
  }
  rows_.store(rows() + lent, std::memory_order_release);
  return lent;
}

void LentRows::TakeBack(std::span<const Key> keys) {
  absl::MutexLock lock(&mu_);
  for (const Key key : keys) Erase(Find(key));
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
  absl::MutexLock lock(&mu_);
  for (const Key key : keys) {
    Slot& slot = slots_[Find(key)];
    DCHECK(slot.version != 0);
    slot.version = step + 1;
  }
}

std::vector<uint32_t> LentRows::Older(std::span<const Key> keys, uint64_t step, size_t most) const {
  std::vector<uint32_t> older;
  if (rows() == 0) return older;
  absl::ReaderMutexLock lock(&mu_);
  for (uint32_t i = 0; i < keys.size() && older.size() < most; ++i) {
    const Slot& slot = slots_[Find(keys[i])];
    if (slot.version != 0 && slot.version <= step) older.push_back(i);
  }
  return older;
}

std::optional<size_t> LentRows::FirstLent(std::span<const Key> keys) const {
  if (rows() == 0) return std::nullopt;
  absl::ReaderMutexLock lock(&mu_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (slots_[Find(keys[i])].version != 0) return i;
  }
  return std::nullopt;
}

std::optional<size_t> LentRows::FirstNotLent(std::span<const Key> keys, uint64_t step) const {
  absl::ReaderMutexLock lock(&mu_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (slots_.empty()) return i;
    const Slot& slot = slots_[Find(keys[i])];
    if (slot.version == 0 || slot.version > step + 1) return i;
  }
  return std::nullopt;
}

uint64_t LentRows::CountOlder(uint64_t step) const {
  absl::ReaderMutexLock lock(&mu_);
  uint64_t older = 0;
  for (const Slot& slot : slots_) older += slot.version != 0 && slot.version <= step ? 1 : 0;
  return older;
}

}  // namespace sparrow
