#include "worker/hot_set.h"

#include <algorithm>
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

void HotSet::Use(std::span<const uint32_t> slots) {
  for (const uint32_t slot : slots) {
    Row& row = rows_[slot];
    row.uses = std::min(UsesNow(row), std::numeric_limits<uint32_t>::max() - 1) + 1;
    row.counted = decisions_;
  }
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
      const uint64_t uses = rows_[slot].taken ? uint64_t{UsesNow(rows_[slot])} + 1 : 0;
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
    seat.out = rows_[best].name;
  }
  ++decisions_;
  return seats;
}

void HotSet::Redirect(std::span<const HotSeat> seats) {
  for (const HotSeat& seat : seats) {
    if (seat.replaces) index_.erase(seat.out);
    CHECK(index_.emplace(seat.in, seat.slot).second) << "a row that is held already";
  }
}

void HotSet::Settle(std::span<const HotSeat> seats) {
  for (const HotSeat& seat : seats) {
    if (seat.replaces) digest_ -= DigestOf(seat.slot, seat.out);
    digest_ += DigestOf(seat.slot, seat.in);
    rows_[seat.slot] = {.name = seat.in, .uses = seat.uses, .counted = decisions_, .taken = true};
  }
}

void ColdUses::Use(const RowName& name) {
  if (cells_.empty()) return;
  RowUses& cell = cells_[NameBits(name) & (cells_.size() - 1)];
  if (cell.uses == 0) cell.name = name;
  if (cell.name == name) {
    if (cell.uses < std::numeric_limits<uint32_t>::max()) ++cell.uses;
  } else {
    --cell.uses;
  }
}

std::vector<RowUses> ColdUses::Take(size_t most) {
  std::vector<RowUses> used;
  for (RowUses& cell : cells_) {
    if (cell.uses == 0) continue;
    used.push_back(cell);
    cell.uses /= 2;
  }
  if (used.size() > most) {
    std::nth_element(used.begin(), used.begin() + static_cast<std::ptrdiff_t>(most), used.end(), Before);
    used.resize(most);
  }
  std::sort(used.begin(), used.end(), Before);
  return used;
}

}  // namespace sparrow
