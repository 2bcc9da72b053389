#include "worker/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace sparrow {
namespace {

std::vector<uint64_t> OrderOf(uint64_t n, uint64_t seed) {
  const Permutation permutation(n, seed);
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < n; ++i) order.push_back(permutation(i));
  return order;
}

void ExpectEachOnce(uint64_t n, uint64_t seed) {
  std::vector<bool> seen(n);
  for (const uint64_t to : OrderOf(n, seed)) {
    ASSERT_LT(to, n) << "n " << n << " seed " << seed;
    ASSERT_FALSE(seen[to]) << to << " twice, n " << n << " seed " << seed;
    seen[to] = true;
  }
}

TEST(Permutation, EachComesOnce) {
  for (uint64_t n = 1; n <= 300; ++n) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) ExpectEachOnce(n, seed);
  }
  for (const uint64_t n : {4095u, 4096u, 4097u, 65537u, 1'000'003u}) ExpectEachOnce(n, n);
}

TEST(Permutation, ElementsOfALongOneAreInItAndDiffer) {
  const uint64_t n = (uint64_t{1} << 40) + 12345;
  const Permutation permutation(n, 7);
  std::set<uint64_t> seen;
  for (uint64_t i = n - 100'000; i < n; ++i) {
    const uint64_t to = permutation(i);
    EXPECT_LT(to, n);
    EXPECT_TRUE(seen.insert(to).second);
  }
}

TEST(Permutation, IsAPureFunctionOfSeedAndLength) {
  EXPECT_EQ(OrderOf(1000, 5), OrderOf(1000, 5));
  EXPECT_NE(OrderOf(1000, 5), OrderOf(1000, 6));
}

// Resumed jobs depend on it.
TEST(Permutation, DoesNotChangeFromVersionToVersion) {
  EXPECT_EQ(OrderOf(10, 42), (std::vector<uint64_t>{9, 5, 8, 0, 2, 6, 3, 1, 7, 4}));
}

// Each place is as likely for each element: chi-squared over 4,000 orders of 12, with 11 x 11 degrees of freedom.
TEST(Permutation, PlacesAreUniform) {
  constexpr uint64_t kN = 12, kOrders = 4000;
  std::vector<double> counts(kN * kN);
  for (uint64_t seed = 0; seed < kOrders; ++seed) {
    const std::vector<uint64_t> order = OrderOf(kN, seed);
    for (uint64_t i = 0; i < kN; ++i) ++counts[i * kN + order[i]];
  }
  const double expected = static_cast<double>(kOrders) / kN;
  double chi = 0;
  for (const double count : counts) chi += (count - expected) * (count - expected) / expected;
  const double freedom = 11 * 11;
  EXPECT_LT(std::abs(chi - freedom), 5 * std::sqrt(2 * freedom)) << chi;
}

// An order has no runs: neighbours are far apart, as of a shuffle by any other means.
TEST(Permutation, NeighboursAreFarApart) {
  constexpr uint64_t kN = 100'000;
  const std::vector<uint64_t> order = OrderOf(kN, 3);
  double sum = 0;
  uint64_t followers = 0;
  for (uint64_t i = 1; i < kN; ++i) {
    sum += std::abs(static_cast<double>(order[i]) - static_cast<double>(order[i - 1]));
    followers += order[i] == order[i - 1] + 1 ? 1 : 0;
  }
  EXPECT_NEAR(sum / (kN - 1), kN / 3.0, kN / 100.0);
  EXPECT_LT(followers, 10u) << "one is expected";
}

}  // namespace
}  // namespace sparrow
