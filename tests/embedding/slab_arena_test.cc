#include "embedding/slab_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace sparrow {
namespace {

// Fills each slot with its number, so that two that overlap would show.
void Fill(const SlabArena& arena, uint32_t slot) {
  std::memset(arena.At(slot), static_cast<int>(slot * 37), arena.slot_bytes());
}
bool Holds(const SlabArena& arena, uint32_t slot) {
  const std::vector<char> expected(arena.slot_bytes(), static_cast<char>(slot * 37));
  return std::memcmp(arena.At(slot), expected.data(), expected.size()) == 0;
}

TEST(SlabArena, SlotsDoNotOverlapAndAreAligned) {
  for (const uint64_t slot_bytes : {16u, 96u, 1040u, 49'168u}) {
    SlabArena arena(slot_bytes);
    const uint32_t count = static_cast<uint32_t>(std::max<uint64_t>(200, (9 << 20) / slot_bytes));  // Several slabs.
    std::vector<uint32_t> slots;
    while (slots.size() < count) ASSERT_TRUE(arena.Take(count / 7 + 1, &slots));
    for (uint32_t i = 0; i < slots.size(); ++i) {
      ASSERT_EQ(slots[i], i);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(arena.At(i)) % 16, 0u);
      Fill(arena, i);
    }
    for (const uint32_t slot : slots) ASSERT_TRUE(Holds(arena, slot)) << slot;
  }
}

TEST(SlabArena, TruncatingKeepsTheSlotsBelow) {
  SlabArena arena(96);
  std::vector<uint32_t> slots;
  ASSERT_TRUE(arena.Take(200'000, &slots));
  for (const uint32_t slot : slots) Fill(arena, slot);
  for (const uint32_t kept : {150'000u, 70'000u, 1'023u, 0u}) {
    arena.Truncate(kept);
    EXPECT_EQ(arena.slots(), kept);
    for (uint32_t slot = 0; slot < kept; ++slot) ASSERT_TRUE(Holds(arena, slot)) << slot;
    slots.clear();
    ASSERT_TRUE(arena.Take(50'000, &slots));
    EXPECT_EQ(slots.front(), kept);
    for (const uint32_t slot : slots) Fill(arena, slot);
    for (uint32_t slot = 0; slot < kept + 50'000; ++slot) ASSERT_TRUE(Holds(arena, slot)) << slot;
  }
}

TEST(SlabArena, RefusesMoreSlotsThanThereAreNumbers) {
  SlabArena arena(16);
  std::vector<uint32_t> slots;
  ASSERT_TRUE(arena.Take(10, &slots));
  EXPECT_FALSE(arena.Take(~uint32_t{0} - 5, &slots));
  EXPECT_EQ(slots.size(), 10u);
  EXPECT_EQ(arena.slots(), 10u);
}

}  // namespace
}  // namespace sparrow
