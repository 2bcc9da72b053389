#include "embedding/batch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <vector>

#include "embedding/row_index.h"

namespace sparrow {
namespace {

TEST(BatchPlan, EachKeyIsInTheGroupOfItsStripeInOrder) {
  std::mt19937_64 random(3);
  BatchPlan plan;  // Used again for batches of all sizes.
  for (const size_t n : {0, 1, 31, 33, 257, 7000, 5}) {
    for (const uint32_t stripes : {16u, 64u, 256u}) {
      std::vector<Key> keys(n);
      for (Key& key : keys) key = random();
      plan.Build(keys, stripes);
      ASSERT_EQ(plan.stripes(), stripes);
      std::vector<int> seen(n);
      for (uint32_t s = 0; s < stripes; ++s) {
        EXPECT_TRUE(std::is_sorted(plan.Group(s).begin(), plan.Group(s).end()));
        EXPECT_TRUE(plan.Missing(s).empty());
        for (const uint32_t position : plan.Group(s)) {
          ASSERT_LT(position, n);
          ++seen[position];
          EXPECT_EQ(RowIndex::Hash(keys[position]) % stripes, s);
        }
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(n));
    }
  }
}

TEST(PlannedStripes, VisitsItsStripesThatHaveKeysOnce) {
  std::mt19937_64 random(4);
  std::vector<Key> keys(40);
  for (Key& key : keys) key = random();
  BatchPlan plan;
  plan.Build(keys, 64);
  uint64_t all_keys = 0;
  std::vector<std::atomic<int>> visits(64);
  for (const auto& [begin, end] : {std::pair{0u, 5u}, std::pair{5u, 6u}, std::pair{6u, 64u}}) {
    const PlannedStripes part(&plan, begin, end);
    all_keys += part.keys();
    part.ForEach([&, begin = begin, end = end](uint32_t s) {
      EXPECT_GE(s, begin);
      EXPECT_LT(s, end);
      ++visits[s];
    });
    EXPECT_EQ(part.TotalMissing(), 0u);
    plan.missing[begin] = 1;
    EXPECT_EQ(part.TotalMissing(), 1u);
  }
  EXPECT_EQ(all_keys, keys.size());
  EXPECT_EQ(PlannedStripes(&plan).TotalMissing(), 3u);
  for (uint32_t s = 0; s < 64; ++s) EXPECT_EQ(visits[s], plan.Group(s).empty() ? 0 : 1) << s;
}

}  // namespace
}  // namespace sparrow
