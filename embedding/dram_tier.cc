#include "embedding/dram_tier.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace sparrow {
namespace {

// The place of the clock's n-th entry. Places that follow each other in a round lie far apart, in steps of the golden
// section, a cache line each. Were they neighbours, the hand would leave a stretch of free entries behind it, and ahead
// of it, where nothing has gone for a round, entries would lie twice as close as on average: from half full on, linear
// probing would walk over thousands of them.
uint64_t PlaceOnClock(uint64_t n, uint64_t capacity) {
  constexpr uint64_t kGoldenSection = 0x9e3779b97f4a7c15;  // Of 2^64.
  constexpr uint64_t kInLine = 64 / sizeof(RowIndex::Entry);
  const uint64_t lines = capacity / kInLine;
  static_assert(RowIndex::kCapacityMin >= 2 * kInLine);
  const uint64_t step = kGoldenSection >> (64 - std::countr_zero(lines)) | 1;  // Odd, so that a round misses no line.
  return (n / kInLine * step & (lines - 1)) * kInLine + n % kInLine;
}

}  // namespace

DramTier::DramTier(const TableSpec& spec, MemoryBudget* budget)
    : budget_(budget),
      stripe_count_(BatchPlan::Stripes()),
      stripes_(std::make_unique<Stripe[]>(stripe_count_)),
      arena_(spec.Layout().slot_bytes()) {
  for (uint32_t s = 0; s < stripe_count_; ++s) {
    absl::MutexLock lock(&stripes_[s].mu);
    stripes_[s].index.Reset(&pool_);
    AddBytes(static_cast<int64_t>(stripes_[s].index.bytes()));
  }
}

DramTier::~DramTier() { AddBytes(-static_cast<int64_t>(bytes())); }

void DramTier::AddBytes(int64_t bytes) {
  budget_->Add(bytes);
  bytes_.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
}

uint64_t DramTier::Grow(uint64_t rows, Stripe* stripe) {
  const uint64_t wanted = rows + stripe->reserved;
  while (stripe->index.Room() < wanted) {
    const uint64_t more = stripe->index.bytes();
    if (budget_->TakeUpTo(1, more) == 0) break;
    if (!stripe->index.Resize(2 * stripe->index.capacity())) {
      budget_->Add(-static_cast<int64_t>(more));
      break;
    }
    bytes_.fetch_add(more, std::memory_order_relaxed);
  }
  const uint64_t index_room = std::min(wanted, stripe->index.Room());
  if (stripe->free.size() < index_room) {
    const uint64_t slots = budget_->TakeUpTo(index_room - stripe->free.size(), arena_.slot_bytes());
    if (arena_.Take(static_cast<uint32_t>(slots), &stripe->free)) {
      bytes_.fetch_add(slots * arena_.slot_bytes(), std::memory_order_relaxed);
    } else {
      budget_->Add(-static_cast<int64_t>(slots * arena_.slot_bytes()));
    }
  }
  const uint64_t room = std::min<uint64_t>(index_room, stripe->free.size());
  return room > stripe->reserved ? room - stripe->reserved : 0;
}

bool DramTier::ForceOne(Stripe* stripe) {
  DCHECK(stripe->index.Room() > 0);
  if (!arena_.Take(1, &stripe->free)) return false;
  AddBytes(static_cast<int64_t>(arena_.slot_bytes()));
  return true;
}

RowIndex::Entry* DramTier::Insert(Key key, uint32_t flags, Stripe* stripe) {
  DCHECK(!stripe->free.empty());
  const uint32_t slot = stripe->free.back();
  stripe->free.pop_back();
  rows_.fetch_add(1, std::memory_order_relaxed);
  return stripe->index.Insert(key, RowIndex::Hash(key), slot, flags | RowIndex::kUsed);
}

void DramTier::Erase(Key key, Stripe* stripe) {
  stripe->free.push_back(stripe->index.Find(key, RowIndex::Hash(key))->slot);
  stripe->index.Erase(key);
  rows_.fetch_sub(1, std::memory_order_relaxed);
}

std::vector<RowIndex::Entry*> DramTier::ChooseVictims(uint64_t rows, Stripe* stripe) {
  std::vector<RowIndex::Entry*> victims;
  const std::span<RowIndex::Entry> all = stripe->index.all();
  // The first round may only clear marks; the second then finds all there are.
  for (uint64_t seen = 0; seen < 2 * all.size() && victims.size() < rows; ++seen) {
    constexpr uint64_t kAhead = 64;
    __builtin_prefetch(&all[PlaceOnClock(stripe->clock_hand + kAhead, all.size())]);
    RowIndex::Entry& entry = all[PlaceOnClock(stripe->clock_hand++, all.size())];
    if (entry.flags == 0 || (entry.flags & RowIndex::kChosen) != 0) continue;
    if ((entry.flags & RowIndex::kReferenced) != 0) {
      entry.flags &= ~RowIndex::kReferenced;
      continue;
    }
    entry.flags |= RowIndex::kChosen;
    victims.push_back(&entry);
  }
  return victims;
}

void DramTier::AddReady(std::span<const Key> keys, Stripe* stripe) {
  stripe->ready.insert(stripe->ready.begin(), keys.rbegin(), keys.rend());
}

uint64_t DramTier::EraseReady(uint64_t rows, Stripe* stripe) {
  uint64_t erased = 0;
  while (erased < rows && !stripe->ready.empty()) {
    const Key key = stripe->ready.back();
    stripe->ready.pop_back();
    RowIndex::Entry* const entry = stripe->index.Find(key, RowIndex::Hash(key));
    // Forgotten or evicted since, perhaps made anew, and perhaps being written again.
    if (entry == nullptr || (entry->flags & (RowIndex::kChosen | RowIndex::kWriting)) != RowIndex::kChosen) continue;
    if ((entry->flags & (RowIndex::kReferenced | RowIndex::kDirty)) != 0) {
      entry->flags &= ~uint32_t{RowIndex::kChosen};
      continue;
    }
    Erase(key, stripe);
    ++erased;
  }
  return erased;
}

void DramTier::Compact() {
  const uint32_t rows_kept = static_cast<uint32_t>(rows());
  std::vector<uint32_t> low;  // Free slots below rows_kept: exactly as many as rows lie above.
  for (uint32_t s = 0; s < stripe_count_; ++s) {
    absl::MutexLock lock(&stripes_[s].mu);
    CHECK_EQ(stripes_[s].reserved, 0u);
    for (const uint32_t slot : stripes_[s].free) {
      if (slot < rows_kept) low.push_back(slot);
    }
    stripes_[s].free = {};
  }
  for (uint32_t s = 0; s < stripe_count_; ++s) {
    absl::MutexLock lock(&stripes_[s].mu);
    RowIndex& index = stripes_[s].index;
    for (RowIndex::Entry& entry : index.all()) {
      if (entry.flags == 0 || entry.slot < rows_kept) continue;
      std::memcpy(arena_.At(low.back()), arena_.At(entry.slot), arena_.slot_bytes());
      entry.slot = low.back();
      low.pop_back();
    }
    const uint64_t before = index.bytes();
    const uint64_t fitting = std::bit_ceil(std::max(RowIndex::kCapacityMin, 2 * index.size()));
    if (fitting < index.capacity() / 2 && index.Resize(fitting)) {
      AddBytes(static_cast<int64_t>(index.bytes()) - static_cast<int64_t>(before));
    }
  }
  CHECK(low.empty());
  AddBytes(-static_cast<int64_t>((arena_.slots() - rows_kept) * arena_.slot_bytes()));
  arena_.Truncate(rows_kept);
}

}  // namespace sparrow
