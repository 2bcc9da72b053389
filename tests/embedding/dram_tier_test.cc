#include "embedding/dram_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace sparrow {
namespace {

// The longest walk that a look-up in the stripe can need: entries without a free one between them.
uint64_t LongestRun(DramTier::Stripe* stripe) {
  absl::MutexLock lock(&stripe->mu);
  uint64_t longest = 0, run = 0;
  for (int round = 0; round < 2; ++round) {  // Twice: a run may go round the end.
    for (const RowIndex::Entry& entry : stripe->index.all()) {
      run = entry.flags != 0 ? run + 1 : 0;
      longest = std::max(longest, run);
    }
  }
  return longest;
}

// One stripe's rows come and go by the clock, as they do beyond the budget, at an index as full as it gets.
TEST(DramTier, EvictionLeavesNoPartOfTheIndexOverfull) {
  TableSpec spec;
  spec.name = "t";
  spec.dim = 4;
  MemoryBudget budget(uint64_t{1} << 30);
  DramTier dram(spec, &budget);
  DramTier::Stripe& stripe = dram.stripe(0);
  uint64_t next = 0;
  const auto next_key = [&] {
    Key key;
    do key = RandomBits(3, next++);
    while (&dram.StripeOf(key) != &stripe);
    return key;
  };
  constexpr uint64_t kRows = 3 << 12;  // Three quarters of 2^14.
  const auto fill = [&] {
    absl::MutexLock lock(&stripe.mu);
    while (stripe.index.size() < kRows) {
      ASSERT_EQ(dram.Grow(1, &stripe), 1u);
      dram.Insert(next_key(), 0, &stripe);
    }
    ASSERT_EQ(stripe.index.capacity(), uint64_t{1} << 14);
  };
  fill();
  const uint64_t at_random = LongestRun(&stripe);
  for (uint64_t evicted = 0; evicted < 5 * kRows; evicted += 512) {
    {
      absl::MutexLock lock(&stripe.mu);
      std::vector<Key> keys;
      for (const RowIndex::Entry* victim : dram.ChooseVictims(512, &stripe)) keys.push_back(victim->key);
      ASSERT_EQ(keys.size(), 512u);
      for (const Key key : keys) dram.Erase(key, &stripe);
    }
    fill();
    ASSERT_LT(LongestRun(&stripe), 4 * at_random) << "after " << evicted << " evictions";
  }
}

// Whatever the size: no entry is passed over, and none is passed twice, in a round.
TEST(DramTier, ARoundOfTheClockChoosesEveryRowOnce) {
  for (const uint64_t rows : {5u, 6u, 7u, 100u, 3000u}) {
    TableSpec spec;
    spec.name = "t";
    spec.dim = 4;
    MemoryBudget budget(uint64_t{1} << 30);
    DramTier dram(spec, &budget);
    DramTier::Stripe& stripe = dram.stripe(0);
    absl::MutexLock lock(&stripe.mu);
    for (uint64_t n = 0; stripe.index.size() < rows; ++n) {
      const Key key = RandomBits(5, n);
      if (&dram.StripeOf(key) != &stripe) continue;
      ASSERT_EQ(dram.Grow(1, &stripe), 1u);
      dram.Insert(key, 0, &stripe);
    }
    EXPECT_EQ(dram.ChooseVictims(rows, &stripe).size(), rows);
    EXPECT_LE(stripe.clock_hand, stripe.index.capacity());
  }
}

}  // namespace
}  // namespace sparrow
