#include "embedding/key_filter.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace sparrow {
namespace {

std::vector<Key> RandomKeys(uint64_t seed, size_t n) {
  std::vector<Key> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = RandomBits(seed, i);
  return keys;
}

TEST(KeyFilter, NoKeyThatWasAddedIsDenied) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{50000}}) {
    KeyFilter filter(1000);  // Also where far more come than were expected.
    const std::vector<Key> keys = RandomKeys(n, n);
    filter.Add(3, keys);
    for (const Key key : keys) ASSERT_TRUE(filter.MayHave(3, key)) << key;
  }
}

TEST(KeyFilter, FewKeysThatWereNotAddedAreTakenForAdded) {
  constexpr size_t kKeys = 20000;
  KeyFilter filter(kKeys);
  filter.Add(0, RandomKeys(1, kKeys));
  size_t same_table = 0, other_table = 0;
  for (const Key key : RandomKeys(2, kKeys)) same_table += filter.MayHave(0, key);
  for (const Key key : RandomKeys(1, kKeys)) other_table += filter.MayHave(1, key);  // A table's keys are its own.
  EXPECT_LT(same_table, kKeys / 20);
  EXPECT_LT(other_table, kKeys / 20);
  EXPECT_GT(same_table + other_table, 0u) << "a filter without errors is not this one";
}

TEST(KeyFilter, KeysMayBeAddedByManyThreads) {
  constexpr size_t kThreads = 4, kKeys = 20000;
  KeyFilter filter(kThreads * kKeys);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) threads.emplace_back([&, t] { filter.Add(0, RandomKeys(t, kKeys)); });
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < kThreads; ++t) {
    for (const Key key : RandomKeys(t, kKeys)) ASSERT_TRUE(filter.MayHave(0, key));
  }
}

}  // namespace
}  // namespace sparrow
