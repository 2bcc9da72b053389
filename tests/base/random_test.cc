#include "base/random.h"

#include <gtest/gtest.h>

#include <set>

#include "base/philox.h"

namespace sparrow {
namespace {

// The first outputs of SplitMix64, whose state grows by the golden ratio before it is mixed: published with its
// reference implementation (seed 1234567) and for seed 0.
TEST(Random, MixIsSplitMix64) {
  EXPECT_EQ(Mix64(0), 0xe220a8397b1dcdafu);
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const uint64_t expected[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u,
                               16408922859458223821u};
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(Mix64(1234567 + i * kGolden), expected[i]);
}

// The known answers of its authors' library, Random123.
TEST(Random, PhiloxHasItsPublishedAnswers) {
  const auto expect = [](uint32_t counter0, uint32_t counter1, uint32_t key, uint32_t first, uint32_t second) {
    const RandomWords bits = Philox(counter0, counter1, key);
    EXPECT_EQ(bits.words[0], first);
    EXPECT_EQ(bits.words[1], second);
  };
  expect(0, 0, 0, 0x257a3673, 0xcd26be2a);
  expect(0xffffffff, 0xffffffff, 0xffffffff, 0xab302c4d, 0x3dc9d239);
  expect(0x243f6a88, 0x85a308d3, 0x13198a2e, 0xbedbbe6b, 0xe4c770b3);
}

// Fixed for ever: golden files and checkpoints depend on them. Computed from the definition in exact integer
// arithmetic.
TEST(Random, BitsAreAPureFunctionOfSeedAndIndex) {
  EXPECT_EQ(RandomBits(0, 0), Mix64(0xe220a8397b1dcdafu));
  EXPECT_EQ(RandomBits(1, 2), Mix64(1 ^ Mix64(2)));
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (uint64_t index = 0; index < 100; ++index) seen.insert(RandomBits(seed, index));
  }
  EXPECT_EQ(seen.size(), 10'000u) << "no two alike";
}

TEST(Random, UniformIsInRangeWithTheRightMoments) {
  constexpr int kDraws = 200'000;
  double sum = 0;
  double squares = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = RandomUniform(42, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  // Five standard errors: 5 * sqrt(1/12 / n) and 5 * sqrt(4/45 / n).
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
}

TEST(Random, NormalHasTheRightMomentsAndIsFinite) {
  constexpr int kDraws = 200'000;
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  int beyond_two = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double x = RandomNormal(42, i);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    beyond_two += std::abs(x) > 2;
  }
  EXPECT_NEAR(sum / kDraws, 0, 5 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(fourth / kDraws, 3, 5 * std::sqrt(96.0 / kDraws));
  EXPECT_NEAR(beyond_two / double{kDraws}, 0.0455, 5 * std::sqrt(0.0455 * 0.9545 / kDraws));
}

TEST(Random, StreamsOfNeighbouringSeedsAreUncorrelated) {
  constexpr int kDraws = 100'000;
  double product = 0;
  for (uint64_t i = 0; i < kDraws; ++i) product += RandomNormal(7, i) * RandomNormal(8, i);
  EXPECT_NEAR(product / kDraws, 0, 5 / std::sqrt(kDraws));
}

}  // namespace
}  // namespace sparrow
