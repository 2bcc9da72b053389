#include "server/lent_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "embedding/batch_plan.h"
#include "server/call_memory.h"

namespace sparrow {
namespace {

class LentRowsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kMemory = uint64_t{8} << 20;

  // Calls visit(stripe, group) for the groups of a plan of the keys.
  template <typename Visit>
  static void ForEachGroup(const std::vector<Key>& keys, uint32_t stripes, Visit visit) {
    BatchPlan plan;
    plan.Build(keys, stripes);
    for (uint32_t s = 0; s < stripes; ++s) visit(s, std::span<const uint32_t>(plan.Group(s)));
  }
  // How many were not lent before; nothing if a group was refused.
  std::optional<uint64_t> Lend(const std::vector<Key>& keys, const std::vector<uint8_t>& except, uint64_t step,
                               uint32_t stripes = BatchPlan::kStripesMin) {
    std::optional<uint64_t> lent = 0;
    ForEachGroup(keys, stripes, [&](uint32_t s, std::span<const uint32_t> group) {
      const std::optional<uint64_t> more = lent_.Lend(s, keys, group, except, step);
      if (lent.has_value()) lent = more.has_value() ? std::optional(*lent + *more) : std::nullopt;
    });
    return lent;
  }
  void TakeBack(const std::vector<Key>& keys, uint32_t stripes = BatchPlan::kStripesMin) {
    ForEachGroup(keys, stripes, [&](uint32_t s, auto group) { lent_.TakeBack(s, keys, group); });
  }

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
    const uint32_t stripes = BatchPlan::kStripesMin << random() % 5;  // Calls need not agree in it.
    std::vector<Key> keys = draw();
    std::vector<Key> lent_ones;
    for (const Key key : keys) {
      if (expected.contains(key)) lent_ones.push_back(key);
    }
    switch (random() % 4) {
      case 0:
      case 1: {
        std::vector<uint8_t> except(random() % 2 == 0 ? keys.size() : 0);
        uint64_t more = 0;
        for (uint32_t i = 0; i < keys.size(); ++i) {
          if (!except.empty() && random() % 4 == 0) {
            except[i] = 1;
          } else {
            more += expected.contains(keys[i]) ? 0 : 1;
            expected[keys[i]] = step;
          }
        }
        EXPECT_EQ(Lend(keys, except, step, stripes), more);
        break;
      }
      case 2:
        TakeBack(lent_ones, stripes);
        for (const Key key : lent_ones) expected.erase(key);
        break;
      default:
        ForEachGroup(lent_ones, stripes, [&](uint32_t s, auto group) { lent_.Keep(s, lent_ones, group, step); });
        for (const Key key : lent_ones) expected[key] = step;
    }
    ASSERT_EQ(lent_.rows(), expected.size());
    const uint64_t asked = random() % (step + 2);
    uint64_t older = 0;
    for (const auto& [key, version] : expected) older += version < asked ? 1 : 0;
    ASSERT_EQ(lent_.CountOlder(asked), older);
    keys = draw();
    std::vector<uint8_t> expected_older(keys.size()), marked(keys.size());
    uint64_t count = 0;
    ForEachGroup(keys, stripes, [&](uint32_t s, std::span<const uint32_t> group) {
      std::optional<uint32_t> first_lent, first_not_lent;
      for (const uint32_t i : group) {
        const auto at = expected.find(keys[i]);
        if (at != expected.end() && at->second < asked) expected_older[i] = 1;
        if (at != expected.end() && !first_lent.has_value()) first_lent = i;
        if ((at == expected.end() || at->second > asked) && !first_not_lent.has_value()) first_not_lent = i;
      }
      ASSERT_EQ(lent_.FirstLent(s, keys, group), first_lent);
      ASSERT_EQ(lent_.FirstNotLent(s, keys, group, asked), first_not_lent);
      count += lent_.MarkOlder(s, keys, group, asked, marked);
    });
    ASSERT_EQ(marked, expected_older);
    ASSERT_EQ(count, static_cast<uint64_t>(std::count(marked.begin(), marked.end(), 1)));
  }
}

// Each thread has keys of its own; their slots lie in one another's way.
TEST_F(LentRowsTest, ThreadsLendAndTakeBackSideBySide) {
  constexpr uint64_t kThreads = 4;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (uint64_t step = 0; step < 200; ++step) {
        std::vector<Key> keys(1 + random() % 200);
        for (size_t i = 0; i < keys.size(); ++i) keys[i] = (i * 3 + random() % 3) * kThreads + t;
        wrong += Lend(keys, {}, step) != keys.size();
        ForEachGroup(keys, 64, [&](uint32_t s, auto group) {
          wrong += lent_.FirstNotLent(s, keys, group, step).has_value();
          if (!group.empty()) wrong += lent_.FirstLent(s, keys, group) != group[0];
        });
        TakeBack(keys, 64);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(lent_.rows(), 0u);
  EXPECT_EQ(lent_.CountOlder(1000), 0u);
}

TEST_F(LentRowsTest, CountsInTheMemoryOfCallsAndLendsNoMoreThanIsThere) {
  std::optional<uint64_t> more = 0;
  std::vector<Key> keys(1000);
  for (Key next = 0; more.has_value(); more = Lend(keys, {}, 0)) {
    ASSERT_EQ(lent_.rows(), next);
    ASSERT_EQ(memory_.waiting_bytes(), lent_.bytes());
    for (Key& key : keys) key = next++;
    ASSERT_LT(next, kMemory) << "never refused";
  }
  EXPECT_GT(lent_.rows() * 43, memory_.waiting_bytes_max() / 4);
  EXPECT_EQ(memory_.waiting_bytes(), lent_.bytes());
  // Of a group that was refused none.
  ForEachGroup(keys, BatchPlan::kStripesMin, [&](uint32_t s, std::span<const uint32_t> group) {
    if (group.empty()) return;
    const bool is_lent = lent_.FirstLent(s, keys, group).has_value();
    EXPECT_EQ(lent_.FirstNotLent(s, keys, group, 0).has_value(), !is_lent);
  });
  // What is there may be lent again.
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  TakeBack(keys);
  EXPECT_EQ(Lend(keys, {}, 3), keys.size());
}

}  // namespace
}  // namespace sparrow
