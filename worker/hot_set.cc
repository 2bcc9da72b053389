#include "worker/hot_set.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "base/check.h"
#include "base/random.h"

namespace sparrow {
namespace {

// The most used first; the order of equally used ones is as good as any, but fixed.
bool Before(const RowUses& a, const RowUses& b) {
  return std::tuple(b.uses, a.name.table, a.name.key) < std::tuple(a.uses, b.name.table, b.name.key);
}

uint64_t DigestOf(uint32_t slot, const RowName& name) { return RandomBits(NameBits(name), slot); }

}  // namespace

HotSet::HotSet(uint32_t buckets)
    : rows_(size_t{buckets} * kBucketSlots), digests_(size_t{buckets} * kBucketSlots), buckets_(buckets) {}

uint32_t HotSet::Find(const RowName& name) const {
  if (!moved_.empty()) {
    const auto moved = moved_.find(name);
    if (moved != moved_.end()) return moved->second;
  }
  if (buckets_ == 0) return kNoSlot;
  const uint64_t bits = NameBits(name);
  const uint8_t* const bucket = digests_.data() + size_t{CacheBucketOf(bits, buckets_)} * kBucketSlots;
  const uint8_t* const end = bucket + kBucketSlots;
  const uint8_t digest = CacheDigestOf(bits);
  for (const uint8_t* at = bucket; at < end; ++at) {
    at = static_cast<const uint8_t*>(std::memchr(at, digest, static_cast<size_t>(end - at)));
    if (at == nullptr) break;
    const uint32_t slot = static_cast<uint32_t>(at - digests_.data());
    if (rows_[slot] == name) return slot;
  }
  return kNoSlot;
}

void HotSet::Use(std::span<const uint32_t> slots) {
  for (const uint32_t slot : slots) SetUses(slot, UsesOf(slot) + 1);
}

void HotSet::TakeUses(std::span<const uint32_t> words) {
  CHECK_EQ(words.size(), rows_.size());
  for (size_t slot = 0; slot < words.size(); ++slot) rows_[slot].padding = words[slot];
}

std::vector<HotSeat> HotSet::Decide(std::vector<RowUses> candidates, size_t most) {
  std::sort(candidates.begin(), candidates.end(), Before);
  std::vector<HotSeat> seats;
  absl::flat_hash_set<uint32_t> given;
  for (const RowUses& candidate : candidates) {
    if (seats.size() == most || buckets_ == 0) break;
    const uint32_t first = CacheBucketOf(NameBits(candidate.name), buckets_) * kBucketSlots;
    uint32_t best = kNoSlot;
    uint64_t best_uses = 0;  // And 1; 0: the slot is free.
    for (uint32_t slot = first; slot < first + kBucketSlots; ++slot) {
      const uint64_t uses = digests_[slot] != 0 ? uint64_t{UsesOf(slot)} + 1 : 0;
      if ((best != kNoSlot && uses >= best_uses) || given.contains(slot)) continue;
      best = slot;
      best_uses = uses;
      if (uses == 0) break;
    }
    if (best == kNoSlot || (best_uses > 0 && candidate.uses <= 2 * (best_uses - 1))) continue;
    given.insert(best);
    HotSeat& seat = seats.emplace_back(HotSeat{.slot = best, .in = candidate.name, .uses = candidate.uses});
    if (best_uses == 0) continue;
    seat.replaces = true;
    seat.out = {.key = rows_[best].key, .table = rows_[best].table};
  }
  ++decisions_;
  return seats;
}

void HotSet::Redirect(std::span<const HotSeat> seats) {
  for (const HotSeat& seat : seats) {
    if (seat.replaces) moved_[seat.out] = kNoSlot;
    moved_[seat.in] = seat.slot;
  }
}

void HotSet::Settle(std::span<const HotSeat> seats) {
  moved_.clear();
  for (const HotSeat& seat : seats) {
    if (seat.replaces) digest_ -= DigestOf(seat.slot, seat.out);
    digest_ += DigestOf(seat.slot, seat.in);
    rows_[seat.slot] = {.key = seat.in.key, .table = seat.in.table};
    digests_[seat.slot] = CacheDigestOf(NameBits(seat.in));
    SetUses(seat.slot, seat.uses);
  }
}

void ColdUses::Use(const RowName& name) {
  if (cells_.empty()) return;
  RowUses& cell = cells_[NameBits(name) & (cells_.size() - 1)];
  if (cell.uses == 0) {
    cell.name = name;
    ++taken_;
  }
  if (cell.name == name) {
    if (cell.uses < std::numeric_limits<uint32_t>::max()) ++cell.uses;
  } else if (--cell.uses == 0) {
    --taken_;
  }
}

std::vector<RowUses> ColdUses::Take(size_t most) {
  std::vector<RowUses> used;
  if (taken_ == 0) return used;
  for (RowUses& cell : cells_) {
    if (cell.uses == 0) continue;
    used.push_back(cell);
    cell.uses /= 2;
    if (cell.uses == 0) --taken_;
  }
  if (used.size() > most) {
    std::nth_element(used.begin(), used.begin() + static_cast<std::ptrdiff_t>(most), used.end(), Before);
    used.resize(most);
  }
  std::sort(used.begin(), used.end(), Before);
  return used;
}

}  // namespace sparrow
