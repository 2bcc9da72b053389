#include "embedding/dram_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace sparrow {
namespace {

// A tier of which one stripe is used.
class OneStripe {
 public:
  DramTier& dram() { return dram_; }
  DramTier::Stripe& stripe() { return dram_.stripe(0); }

  // Adds rows of keys that were not there before until there are so many.
  void Fill(uint64_t rows) {
    absl::MutexLock lock(&stripe().mu);
    while (stripe().index.size() < rows) {
      const Key key = RandomBits(3, next_++);
      if (&dram_.StripeOf(key) != &stripe()) continue;
      ASSERT_EQ(dram_.Grow(1, &stripe()), 1u);
      dram_.Insert(key, 0, &stripe());
    }
  }

 private:
  static TableSpec Spec() {
    TableSpec spec;
    spec.name = "t";
    spec.dim = 4;
    return spec;
  }

  MemoryBudget budget_{uint64_t{1} << 30};
  DramTier dram_{Spec(), &budget_};
  uint64_t next_ = 0;
};

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
  OneStripe tier;
  DramTier::Stripe& stripe = tier.stripe();
  constexpr uint64_t kRows = 3 << 12;  // Three quarters of 2^14.
  tier.Fill(kRows);
  const uint64_t at_random = LongestRun(&stripe);
  for (uint64_t evicted = 0; evicted < 5 * kRows; evicted += 512) {
    {
      absl::MutexLock lock(&stripe.mu);
      std::vector<Key> keys;
      for (const RowIndex::Entry* victim : tier.dram().ChooseVictims(512, &stripe)) keys.push_back(victim->key);
      ASSERT_EQ(keys.size(), 512u);
      for (const Key key : keys) tier.dram().Erase(key, &stripe);
    }
    tier.Fill(kRows);
    ASSERT_LT(LongestRun(&stripe), 4 * at_random) << "after " << evicted << " evictions";
    absl::MutexLock lock(&stripe.mu);
    ASSERT_EQ(stripe.index.capacity(), uint64_t{1} << 14);
  }
}

// Whatever the size: no entry is passed over, and none is passed twice, in a round.
TEST(DramTier, ARoundOfTheClockChoosesEveryRowOnce) {
  for (const uint64_t rows : {5u, 6u, 7u, 100u, 3000u}) {
    OneStripe tier;
    tier.Fill(rows);
    DramTier::Stripe& stripe = tier.stripe();
    absl::MutexLock lock(&stripe.mu);
    EXPECT_EQ(tier.dram().ChooseVictims(rows, &stripe).size(), rows);
    EXPECT_LE(stripe.clock_hand, stripe.index.capacity());
  }
}

}  // namespace
}  // namespace sparrow
