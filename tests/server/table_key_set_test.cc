#include "server/table_key_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

namespace sparrow {
namespace {

TEST(TableKeySet, HoldsWhatASetOfPairsHolds) {
  std::mt19937_64 random(3);
  TableKeySet set;
  std::set<std::pair<uint32_t, Key>> expected;
  for (int step = 0; step < 60; ++step) {
    for (int part = 0; part < 4; ++part) {
      const uint32_t table = random() % 3;
      std::vector<Key> keys;
      // Few different ones, so that tables share keys and some come again; and the extremes.
      for (uint64_t n = random() % 200; n > 0; --n) keys.push_back(random() % 500);
      if (random() % 2 == 0) keys.insert(keys.end(), {0, ~Key{0}});
      set.Insert(table, keys);
      for (const Key key : keys) expected.emplace(table, key);
      EXPECT_EQ(set.empty(), expected.empty());
      for (uint32_t t = 0; t < 4; ++t) {
        for (Key key = 0; key < 500; ++key) ASSERT_EQ(set.Contains(t, key), expected.contains({t, key})) << t << key;
        ASSERT_EQ(set.Contains(t, ~Key{0}), expected.contains({t, ~Key{0}}));
      }
    }
    set.Clear();
    expected.clear();
    EXPECT_TRUE(set.empty());
    EXPECT_FALSE(set.Contains(0, 0));
  }
}

}  // namespace
}  // namespace sparrow
