#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "embedding/replica.h"
#include "embedding/row_cache.h"

namespace sparrow {

void HotFirstCpu(std::span<const uint32_t> slots, uint32_t none, std::span<uint32_t> order,
                 std::span<uint32_t> slots_in_order) {
  CHECK_EQ(slots.size(), order.size());
  CHECK_LE(slots.size(), slots_in_order.size());
  std::fill(slots_in_order.begin(), slots_in_order.end(), none);
  uint32_t next = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == kNoSlot) continue;
    slots_in_order[next] = slots[i];
    order[i] = next++;
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == kNoSlot) order[i] = next++;
  }
}

void PlaceWeightsCpu(std::span<const float> packed, std::span<const uint32_t> positions, uint32_t dim,
                     uint64_t slot_bytes, std::span<char> rows) {
  for (size_t i = 0; i < positions.size(); ++i) {
    std::memcpy(rows.data() + i * slot_bytes, packed.data() + size_t{positions[i]} * dim, dim * sizeof(float));
  }
}

void PutRecordsCpu(std::span<const char> packed, std::span<const uint32_t> positions, std::span<const uint32_t> slots,
                   const RowLayout& layout, std::span<char> records) {
  CHECK_EQ(slots.size(), positions.size());
  const uint64_t record_bytes = layout.record_bytes();
  for (size_t i = 0; i < slots.size(); ++i) {
    std::memcpy(records.data() + slots[i] * layout.slot_bytes(), packed.data() + positions[i] * record_bytes,
                record_bytes);
  }
}

void CountUsesCpu(std::span<const uint32_t> slots, uint32_t decisions, std::span<uint32_t> uses) {
  for (const uint32_t slot : slots) {
    if (slot < uses.size()) uses[slot] = UsesWord(UsesNow(uses[slot], decisions) + 1, decisions);
  }
}

uint64_t DigestRecordsCpu(std::span<const char> records, const RowLayout& layout, std::span<const uint32_t> slots,
                          uint32_t slots_end) {
  uint64_t sum = 0;
  for (const uint32_t slot : slots) {
    if (slot >= slots_end) continue;
    uint64_t words = 0;
    for (uint32_t i = 0; i < layout.record_bytes() / sizeof(uint32_t); ++i) {
      uint32_t word;
      std::memcpy(&word, records.data() + slot * layout.slot_bytes() + i * sizeof(word), sizeof(word));
      words += WordDigest(word, i);
    }
    sum += RecordDigest(words, slot);
  }
  return sum;
}

}  // namespace sparrow
