// Which rows workers hold together: the set against a plain model, and the counts that propose rows for it.

#include "worker/hot_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"

namespace sparrow {
namespace {

RowName Name(uint64_t key, uint32_t table = 0) { return {.key = key, .table = table}; }

// Names of the first bucket of two.
std::vector<RowName> NamesOfOneBucket(size_t n) {
  std::vector<RowName> names;
  for (uint64_t key = 0; names.size() < n; ++key) {
    if (CacheBucketOf(NameBits(Name(key)), 2) == 0) names.push_back(Name(key));
  }
  return names;
}

void Carry(const std::vector<HotSeat>& seats, HotSet* set) {
  set->Redirect(seats);
  set->Settle(seats);
}

TEST(HotSet, RowsTakeFreeSlotsAndThenThoseOfRowsUsedLessThanHalfAsOften) {
  HotSet set(2);
  EXPECT_EQ(set.slots(), 256u);
  const std::vector<RowName> names = NamesOfOneBucket(kBucketSlots + 3);
  std::vector<RowUses> first;
  for (size_t i = 0; i < kBucketSlots; ++i) first.push_back({names[i], 4});
  const auto seats = set.Decide(first, 1000);
  ASSERT_EQ(seats.size(), kBucketSlots);
  for (const HotSeat& seat : seats) EXPECT_FALSE(seat.replaces);
  EXPECT_EQ(set.Find(names[0]), kNoSlot) << "nothing has changed";
  set.Redirect(seats);
  const uint32_t slot = set.Find(names[5]);
  ASSERT_LT(slot, kBucketSlots);
  EXPECT_EQ(set.At(slot), nullptr) << "look-ups alone have changed";
  set.Settle(seats);
  EXPECT_EQ(*set.At(slot), names[5]);

  for (size_t i = 0; i < kBucketSlots; ++i) {
    if (i == 7) continue;
    const uint32_t used = set.Find(names[i]);
    for (int times = 0; times < 4; ++times) set.Use(std::span(&used, 1));
  }
  // Number 7 has 4 uses, the others 8.
  EXPECT_TRUE(set.Decide({{names[kBucketSlots], 8}}, 1000).empty()) << "not more than twice as often";
  const auto better = set.Decide({{names[kBucketSlots], 5}, {names[kBucketSlots + 1], 5}}, 1000);
  ASSERT_EQ(better.size(), 1u) << "uses count half by now: 2, and 4 of the others";
  EXPECT_EQ(better[0].out, names[7]);
  EXPECT_TRUE(better[0].replaces);
  EXPECT_EQ(better[0].in, names[kBucketSlots]);
  Carry(better, &set);
  EXPECT_EQ(set.Find(names[7]), kNoSlot);
  EXPECT_EQ(set.Find(names[kBucketSlots]), better[0].slot);
}

TEST(HotSet, WithoutSlotsNothingGetsIn) {
  HotSet set(0);
  EXPECT_TRUE(set.Decide({{Name(1), 5}}, 10).empty());
  EXPECT_EQ(set.Find(Name(1)), kNoSlot);
}

TEST(HotSet, NoMoreGetInThanAreAllowedAndThoseUsedMost) {
  HotSet set(4);
  std::vector<RowUses> candidates;
  for (uint64_t key = 0; key < 100; ++key) candidates.push_back({Name(key, 3), static_cast<uint32_t>(1 + key % 50)});
  const auto seats = set.Decide(candidates, 4);
  ASSERT_EQ(seats.size(), 4u);
  EXPECT_EQ(seats[0].in, Name(49, 3));
  EXPECT_EQ(seats[1].in, Name(99, 3));
  EXPECT_EQ(seats[3].in, Name(98, 3));
}

// Equal calls make equal sets, whatever the order in which candidates are listed; and at any time slots and look-ups
// are each other's inverse.
TEST(HotSet, SetsWithEqualCallsAreEqualAndConsistent) {
  std::mt19937_64 random(41);
  HotSet one(3), two(3);
  std::map<uint64_t, uint32_t> model;  // Slots of the rows in the set.
  uint64_t replaced = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> slots;
    for (const auto& [key, slot] : model) {
      if (random() % 3 == 0) slots.push_back(slot);
    }
    one.Use(slots);
    std::shuffle(slots.begin(), slots.end(), random);
    two.Use(slots);
    std::set<uint64_t> keys;
    for (int i = 0; i < 60; ++i) keys.insert(random() % 2000);
    std::vector<RowUses> candidates;
    for (const uint64_t key : keys) {
      if (!model.contains(key)) candidates.push_back({Name(key, key % 3), static_cast<uint32_t>(1 + random() % 9)});
    }
    const auto seats = one.Decide(candidates, 40);
    std::shuffle(candidates.begin(), candidates.end(), random);
    const auto other = two.Decide(candidates, 40);
    ASSERT_EQ(seats.size(), other.size());
    std::set<uint32_t> given;
    for (size_t i = 0; i < seats.size(); ++i) {
      EXPECT_EQ(seats[i].slot, other[i].slot);
      EXPECT_EQ(seats[i].in, other[i].in);
      EXPECT_TRUE(given.insert(seats[i].slot).second) << "a slot each";
      if (seats[i].replaces) {
        ++replaced;
        EXPECT_EQ(model.at(seats[i].out.key), seats[i].slot);
        model.erase(seats[i].out.key);
      }
    }
    for (const HotSeat& seat : seats) model[seat.in.key] = seat.slot;
    Carry(seats, &one);
    Carry(other, &two);
    ASSERT_EQ(one.digest(), two.digest());
    for (const auto& [key, slot] : model) {
      ASSERT_EQ(one.Find(Name(key, key % 3)), slot);
      ASSERT_EQ(*one.At(slot), Name(key, key % 3));
    }
  }
  EXPECT_GT(replaced, 100u);
  EXPECT_EQ(model.size(), one.slots());
}

TEST(HotSet, TheDigestSaysWhichRowIsWhere) {
  HotSet set(1), other(1);
  const HotSeat seat{.slot = 3, .in = Name(1), .uses = 1};
  Carry({seat}, &set);
  Carry({HotSeat{.slot = 4, .in = Name(1), .uses = 1}}, &other);
  EXPECT_NE(set.digest(), other.digest());
  const uint64_t before = set.digest();
  Carry({HotSeat{.slot = 3, .in = Name(2), .uses = 1, .replaces = true, .out = Name(1)}}, &set);
  EXPECT_NE(set.digest(), before);
  Carry({HotSeat{.slot = 3, .in = Name(1), .uses = 1, .replaces = true, .out = Name(2)}}, &set);
  EXPECT_EQ(set.digest(), before);
}

TEST(ColdUses, TheMostUsedRowsAreFoundAmongManyInLittleMemory) {
  ColdUses uses(1024);
  std::mt19937_64 random(5);
  for (int i = 0; i < 100'000; ++i) {
    uses.Use(Name(1000 + random() % 100'000));  // Each about once.
    if (i % 10 == 0) uses.Use(Name(static_cast<uint64_t>(i) / 10 % 20));
  }
  const auto most = uses.Take(20);
  ASSERT_EQ(most.size(), 20u);
  std::set<uint64_t> found;
  for (const RowUses& row : most) found.insert(row.name.key);
  uint64_t hot = 0;
  for (uint64_t key = 0; key < 20; ++key) hot += found.contains(key);
  EXPECT_GE(hot, 18u);
  EXPECT_TRUE(
      std::is_sorted(most.begin(), most.end(), [](const RowUses& a, const RowUses& b) { return a.uses > b.uses; }));
}

TEST(ColdUses, CountsAreHalvedAndEnd) {
  ColdUses uses(16);
  for (int i = 0; i < 5; ++i) uses.Use(Name(7, 2));
  EXPECT_EQ(uses.Take(10).at(0).uses, 5u);
  EXPECT_EQ(uses.Take(10).at(0).uses, 2u);
  EXPECT_EQ(uses.Take(10).at(0).uses, 1u);
  EXPECT_TRUE(uses.Take(10).empty());
  ColdUses none(0);
  none.Use(Name(1));
  EXPECT_TRUE(none.Take(10).empty());
}

}  // namespace
}  // namespace sparrow
