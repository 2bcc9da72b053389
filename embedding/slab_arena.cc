#include "embedding/slab_arena.h"

#include <algorithm>
#include <limits>

namespace sparrow {

namespace {
constexpr uint64_t kFirstSlabBytes = 16 << 10;
}

SlabArena::SlabArena(uint64_t slot_bytes)
    : slot_bytes_(slot_bytes), shift_(std::bit_width(std::max<uint64_t>(1, kFirstSlabBytes / slot_bytes)) - 1) {}

bool SlabArena::Take(uint32_t count, std::vector<uint32_t>* slots) {
  absl::MutexLock lock(&mu_);
  if (count == 0) return true;
  if (count > std::numeric_limits<uint32_t>::max() - slots_) return false;
  for (int slab = SlabOf(slots_); slab <= SlabOf(slots_ + count - 1); ++slab) {
    if (slabs_[slab].data() != nullptr) continue;
    slabs_[slab] = Pages((uint64_t{1} << (slab + shift_)) * slot_bytes_);
    if (slabs_[slab].data() == nullptr) return false;
  }
  for (uint32_t i = 0; i < count; ++i) slots->push_back(slots_ + i);
  slots_ += count;
  return true;
}

void SlabArena::Truncate(uint32_t slots) {
  absl::MutexLock lock(&mu_);
  if (slots >= slots_) return;
  const int last = SlabOf(slots);  // The slab where the next slot will come from stays.
  slabs_[last].ReleaseFrom((slots - FirstSlot(last)) * slot_bytes_);
  for (int slab = last + 1; slab < kSlabsMax; ++slab) slabs_[slab] = Pages();
  slots_ = slots;
}

}  // namespace sparrow
