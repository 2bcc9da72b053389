#include "server/lent_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "server/call_memory.h"

namespace sparrow {
namespace {

class LentRowsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kMemory = uint64_t{8} << 20;
  CallMemory memory_{kMemory, std::make_shared<MemoryBudget>(kMemory)};
  LentRows lent_{&memory_};
};

TEST_F(LentRowsTest, KnowsWhatAMapKnows) {
  std::mt19937_64 random(17);
  std::map<Key, uint64_t> expected;  // Key -> steps that the copy has seen.
  const auto draw = [&] {
    std::set<Key> keys;
    for (uint64_t n = random() % 60; n > 0; --n) keys.insert(random() % 8 == 0 ? ~(random() % 3) : random() % 700);
    return std::vector<Key>(keys.begin(), keys.end());
  };
  for (uint64_t step = 0; step < 2000; ++step) {
    std::vector<Key> keys = draw();
    std::vector<Key> lent_ones;
    for (const Key key : keys) {
      if (expected.contains(key)) lent_ones.push_back(key);
    }
    switch (random() % 4) {
      case 0:
      case 1: {
        std::vector<uint32_t> except;
        uint64_t more = 0;
        for (uint32_t i = 0; i < keys.size(); ++i) {
          if (random() % 4 == 0) {
            except.push_back(i);
          } else {
            more += expected.contains(keys[i]) ? 0 : 1;
            expected[keys[i]] = step;
          }
        }
        EXPECT_EQ(lent_.Lend(keys, except, step), more);
        break;
      }
      case 2:
        lent_.TakeBack(lent_ones);
        for (const Key key : lent_ones) expected.erase(key);
        break;
      default:
        lent_.Keep(lent_ones, step);
        for (const Key key : lent_ones) expected[key] = step;
    }
    ASSERT_EQ(lent_.rows(), expected.size());
    const uint64_t asked = random() % (step + 2);
    uint64_t older = 0;
    for (const auto& [key, version] : expected) older += version < asked ? 1 : 0;
    ASSERT_EQ(lent_.CountOlder(asked), older);
    keys = draw();
    std::vector<uint32_t> positions;
    std::optional<size_t> first_lent, first_not_lent;
    for (uint32_t i = 0; i < keys.size(); ++i) {
      const auto at = expected.find(keys[i]);
      if (at != expected.end() && at->second < asked) positions.push_back(i);
      if (at != expected.end() && !first_lent.has_value()) first_lent = i;
      if ((at == expected.end() || at->second > asked) && !first_not_lent.has_value()) first_not_lent = i;
    }
    ASSERT_EQ(lent_.Older(keys, asked), positions);
    ASSERT_EQ(lent_.Older(keys, asked, 1).size(), std::min<size_t>(1, positions.size()));
    ASSERT_EQ(lent_.FirstLent(keys), first_lent);
    ASSERT_EQ(lent_.FirstNotLent(keys, asked), first_not_lent);
  }
}

TEST_F(LentRowsTest, CountsInTheMemoryOfCallsAndLendsNoMoreThanIsThere) {
  uint64_t rows = 0;
  std::optional<uint64_t> more = 0;
  std::vector<Key> keys(1000);
  for (; more.has_value(); more = lent_.Lend(keys, {}, 0)) {
    rows += *more;
    ASSERT_EQ(lent_.rows(), rows);
    ASSERT_EQ(memory_.waiting_bytes(), lent_.bytes());
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = rows + i;
    ASSERT_LT(rows, kMemory) << "never refused";
  }
  EXPECT_EQ(lent_.rows(), rows) << "none of a call that was refused";
  EXPECT_GT(rows * 43, memory_.waiting_bytes_max() / 4);
  EXPECT_EQ(memory_.waiting_bytes(), lent_.bytes());
  EXPECT_FALSE(lent_.FirstLent(keys).has_value());
  // What is there may be lent again.
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  lent_.TakeBack(keys);
  EXPECT_EQ(lent_.Lend(keys, {}, 3), keys.size());
}

}  // namespace
}  // namespace sparrow
