#include <algorithm>
#include <bit>

#include "base/check.h"
#include "embedding/dedup.h"

namespace sparrow {

void Dedup::Clear() {
  unique_.clear();
  std::fill(slots_.begin(), slots_.end(), 0u);
}

void Dedup::Reserve(uint64_t keys) {
  if (2 * keys <= slots_.size()) return;
  slots_.assign(std::max<uint64_t>(1024, std::bit_ceil(2 * keys)), 0u);
  mask_ = slots_.size() - 1;
  for (uint32_t i = 0; i < unique_.size(); ++i) {
    uint64_t position = Mix64(unique_[i]) & mask_;
    while (slots_[position] != 0) position = (position + 1) & mask_;
    slots_[position] = i + 1;
  }
}

void Dedup::Add(std::span<const Key> keys, std::span<uint32_t> index) {
  CHECK_EQ(keys.size(), index.size());
  CHECK_LT(unique_.size() + keys.size(), uint64_t{1} << 32);
  Reserve(unique_.size() + keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    uint64_t position = Mix64(keys[i]) & mask_;
    while (slots_[position] != 0 && unique_[slots_[position] - 1] != keys[i]) position = (position + 1) & mask_;
    if (slots_[position] == 0) {
      unique_.push_back(keys[i]);
      slots_[position] = static_cast<uint32_t>(unique_.size());
    }
    index[i] = slots_[position] - 1;
  }
}

void UniqueNamesCpu(std::span<const RowName> names, std::vector<RowName>* unique, std::span<uint32_t> index) {
  CHECK_EQ(names.size(), index.size());
  CHECK_LT(names.size(), size_t{0xffffffff});
  unique->clear();
  std::vector<uint32_t> slots(std::bit_ceil(2 * names.size() + 1));  // Open addressing: position in unique + 1.
  const uint64_t mask = slots.size() - 1;
  for (size_t i = 0; i < names.size(); ++i) {
    uint64_t position = NameBits(names[i]) & mask;
    while (slots[position] != 0 && !((*unique)[slots[position] - 1] == names[i])) position = (position + 1) & mask;
    if (slots[position] == 0) {
      unique->push_back(names[i]);
      slots[position] = static_cast<uint32_t>(unique->size());
    }
    index[i] = slots[position] - 1;
  }
}

}  // namespace sparrow
