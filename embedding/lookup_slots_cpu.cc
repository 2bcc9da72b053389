#include "base/check.h"
#include "embedding/lookup_slots.h"
#include "embedding/row_cache.h"

namespace sparrow {

void NameLookupsCpu(std::span<const Key> keys, std::span<const uint32_t> offsets, std::span<const uint32_t> tables,
                    std::span<RowName> names) {
  CHECK_EQ(keys.size(), names.size());
  const size_t samples = tables.empty() ? 0 : (offsets.size() - 1) / tables.size();
  for (size_t f = 0; f < tables.size(); ++f) {
    for (uint32_t i = offsets[f * samples]; i < offsets[(f + 1) * samples]; ++i) {
      names[i] = {.key = keys[i], .table = tables[f]};
    }
  }
}

void PlaceMissingCpu(std::span<const uint32_t> positions, uint32_t first_beside, std::span<uint32_t> given,
                     std::span<uint32_t> slots) {
  CHECK_EQ(positions.size(), given.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    if (given[i] == kNoSlot) given[i] = first_beside + static_cast<uint32_t>(i);
    slots[positions[i]] = given[i];
  }
}

void SlotsOfLookupsCpu(std::span<const uint32_t> index, std::span<const uint32_t> slots, std::span<uint32_t> output) {
  CHECK_EQ(index.size(), output.size());
  for (size_t i = 0; i < index.size(); ++i) output[i] = slots[index[i]];
}

}  // namespace sparrow
