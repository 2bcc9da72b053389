#include "server/lent_rows.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "embedding/row_index.h"

namespace sparrow {
namespace {

constexpr size_t kSlotsMin = 8;

// The low bits choose the stripe.
uint64_t Home(Key key) { return RowIndex::Hash(key) >> 8; }

}  // namespace

uint64_t LentRows::bytes() const {
  uint64_t bytes = 0;
  for (const Stripe& stripe : stripes_) {
    absl::ReaderMutexLock lock(&stripe.mu);
    bytes += stripe.slots.size_bytes();
  }
  return bytes;
}

size_t LentRows::Stripe::Find(Key key) const {
  const size_t mask = slots.size() - 1;
  size_t at = Home(key) & mask;
  while (slots[at].version != 0 && slots[at].key != key) at = (at + 1) & mask;
  return at;
}

template <typename Visit>
void LentRows::Stripe::ForEachSlot(Keys keys, Group group, Visit visit) const {
  constexpr size_t kAhead = 16;
  const size_t mask = slots.size() - 1;
  const auto prefetch = [&](size_t i) { __builtin_prefetch(&slots[Home(keys[group[i]]) & mask]); };
  for (size_t i = 0; i < std::min(kAhead, group.size()); ++i) prefetch(i);
  for (size_t i = 0; i < group.size(); ++i) {
    if (i + kAhead < group.size()) prefetch(i + kAhead);
    if (!visit(group[i], Find(keys[group[i]]))) return;
  }
}

bool LentRows::Reserve(uint64_t more, Stripe* stripe) {
  size_t size = std::max(stripe->slots.size(), kSlotsMin);
  while (size / 4 * 3 < stripe->rows + more) size *= 2;
  if (size == stripe->slots.size()) return true;
  std::optional<CallMemory::Hold> memory = memory_.TryWait(size * sizeof(Slot));
  if (!memory.has_value()) return false;
  PagePool::Block block = pool_.Take(size * sizeof(Slot));
  if (block.data() == nullptr) return false;
  const std::span<const Slot> old =
      std::exchange(stripe->slots, std::span(reinterpret_cast<Slot*>(block.data()), size));
  for (const Slot& slot : old) {
    if (slot.version != 0) stripe->slots[stripe->Find(slot.key)] = slot;
  }
  stripe->block = std::move(block);
  stripe->memory = *std::move(memory);
  return true;
}

std::optional<uint64_t> LentRows::Lend(uint32_t s, Keys keys, Group group, std::span<const uint8_t> except,
                                       uint64_t step) {
  const auto left_out = [&](uint32_t position) { return !except.empty() && except[position] != 0; };
  const size_t wanted = group.size() - static_cast<size_t>(std::ranges::count_if(group, left_out));
  if (wanted == 0) return 0;
  Stripe& stripe = stripes_[s % kStripes];
  absl::MutexLock lock(&stripe.mu);
  if (!Reserve(wanted, &stripe)) return std::nullopt;
  uint64_t lent = 0;
  stripe.ForEachSlot(keys, group, [&](uint32_t position, size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mu) {
    if (left_out(position)) return true;
    if (stripe.slots[at].version == 0) ++lent;
    stripe.slots[at] = {.key = keys[position], .version = step + 1};
    return true;
  });
  stripe.rows += lent;
  rows_.fetch_add(lent, std::memory_order_release);
  return lent;
}

void LentRows::TakeBack(uint32_t s, Keys keys, Group group) {
  if (group.empty()) return;
  Stripe& stripe = stripes_[s % kStripes];
  absl::MutexLock lock(&stripe.mu);
  stripe.ForEachSlot(keys, group, [&](uint32_t, size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mu) {
    stripe.Erase(at);
    return true;
  });
  stripe.rows -= group.size();
  rows_.fetch_sub(group.size(), std::memory_order_release);
}

void LentRows::Stripe::Erase(size_t hole) {
  DCHECK(slots[hole].version != 0);
  const size_t mask = slots.size() - 1;
  for (size_t i = (hole + 1) & mask; slots[i].version != 0; i = (i + 1) & mask) {
    // A slot's row may move to the hole if its home is not after the hole.
    if (((i - Home(slots[i].key)) & mask) < ((i - hole) & mask)) continue;
    slots[hole] = slots[i];
    hole = i;
  }
  slots[hole] = Slot{};
}

void LentRows::Keep(uint32_t s, Keys keys, Group group, uint64_t step) {
  if (group.empty()) return;
  Stripe& stripe = stripes_[s % kStripes];
  absl::MutexLock lock(&stripe.mu);
  stripe.ForEachSlot(keys, group, [&](uint32_t, size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mu) {
    DCHECK(stripe.slots[at].version != 0);
    stripe.slots[at].version = step + 1;
    return true;
  });
}

uint64_t LentRows::MarkOlder(uint32_t s, Keys keys, Group group, uint64_t step, std::span<uint8_t> older) const {
  if (rows() == 0) return 0;
  const Stripe& stripe = stripes_[s % kStripes];
  absl::ReaderMutexLock lock(&stripe.mu);
  if (stripe.rows == 0) return 0;
  uint64_t marked = 0;
  stripe.ForEachSlot(keys, group, [&](uint32_t position, size_t at) ABSL_SHARED_LOCKS_REQUIRED(stripe.mu) {
    if (stripe.slots[at].version == 0 || stripe.slots[at].version > step) return true;
    older[position] = 1;
    ++marked;
    return true;
  });
  return marked;
}

std::optional<uint32_t> LentRows::FirstLent(uint32_t s, Keys keys, Group group) const {
  if (rows() == 0) return std::nullopt;
  const Stripe& stripe = stripes_[s % kStripes];
  absl::ReaderMutexLock lock(&stripe.mu);
  if (stripe.rows == 0) return std::nullopt;
  std::optional<uint32_t> first;
  stripe.ForEachSlot(keys, group, [&](uint32_t position, size_t at) ABSL_SHARED_LOCKS_REQUIRED(stripe.mu) {
    if (stripe.slots[at].version != 0) first = position;
    return !first.has_value();
  });
  return first;
}

std::optional<uint32_t> LentRows::FirstNotLent(uint32_t s, Keys keys, Group group, uint64_t step) const {
  if (group.empty()) return std::nullopt;
  const Stripe& stripe = stripes_[s % kStripes];
  absl::ReaderMutexLock lock(&stripe.mu);
  if (stripe.rows == 0) return group[0];
  std::optional<uint32_t> first;
  stripe.ForEachSlot(keys, group, [&](uint32_t position, size_t at) ABSL_SHARED_LOCKS_REQUIRED(stripe.mu) {
    if (stripe.slots[at].version == 0 || stripe.slots[at].version > step + 1) first = position;
    return !first.has_value();
  });
  return first;
}

uint64_t LentRows::CountOlder(uint64_t step) const {
  uint64_t older = 0;
  for (const Stripe& stripe : stripes_) {
    absl::ReaderMutexLock lock(&stripe.mu);
    for (const Slot& slot : stripe.slots) older += slot.version != 0 && slot.version <= step ? 1 : 0;
  }
  return older;
}

}  // namespace sparrow
