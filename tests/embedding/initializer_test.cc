#include "embedding/initializer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "base/hash.h"

namespace sparrow {
namespace {

constexpr uint64_t kSeed = 42;

std::vector<float> Weights(const Initializer& initializer, uint64_t seed, uint64_t key, uint32_t dim) {
  std::vector<float> weights(dim);
  InitWeights(initializer, seed, key, dim, weights.data());
  return weights;
}

TEST(Initializer, UniformFillsItsRange) {
  double sum = 0, sum_of_squares = 0, least = 1, most = -1;
  constexpr int kRows = 2000, kDim = 16;
  for (int key = 0; key < kRows; ++key) {
    for (const float w : Weights({InitializerKind::kUniform, 0.5}, kSeed, key, kDim)) {
      sum += w;
      sum_of_squares += w * w;
      least = std::min<double>(least, w);
      most = std::max<double>(most, w);
    }
  }
  constexpr double kCount = kRows * kDim;
  EXPECT_GE(least, -0.5);
  EXPECT_LT(most, 0.5);
  EXPECT_LT(least, -0.499);
  EXPECT_GT(most, 0.499);
  EXPECT_NEAR(sum / kCount, 0, 5 * 0.2887 / std::sqrt(kCount));
  EXPECT_NEAR(sum_of_squares / kCount, 0.25 / 3, 0.002);
}

TEST(Initializer, NormalHasItsDeviation) {
  double sum = 0, sum_of_squares = 0, beyond_two = 0;
  constexpr int kRows = 2000, kDim = 16;
  for (int key = 0; key < kRows; ++key) {
    for (const float w : Weights({InitializerKind::kNormal, 0.1}, kSeed, key, kDim)) {
      sum += w;
      sum_of_squares += w * w;
      beyond_two += std::fabs(w) > 0.2;
    }
  }
  constexpr double kCount = kRows * kDim;
  EXPECT_NEAR(sum / kCount, 0, 5 * 0.1 / std::sqrt(kCount));
  EXPECT_NEAR(std::sqrt(sum_of_squares / kCount), 0.1, 0.002);
  EXPECT_NEAR(beyond_two / kCount, 0.0455, 0.005);
}

TEST(Initializer, ConstantIsConstant) {
  EXPECT_EQ(Weights({InitializerKind::kConstant, -1.5}, kSeed, 9, 3), std::vector<float>(3, -1.5f));
}

TEST(Initializer, DependsOnTableKeyAndColumnAlone) {
  const Initializer initializer = {InitializerKind::kUniform, 1};
  std::set<float> seen;
  for (const uint64_t table : {HashBytes("a"), HashBytes("b")}) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      const std::vector<float> weights = Weights(initializer, RandomBits(kSeed, table), key, 8);
      EXPECT_EQ(weights, Weights(initializer, RandomBits(kSeed, table), key, 8));
      // A wider row begins like a narrow one.
      EXPECT_EQ(weights[2], Weights(initializer, RandomBits(kSeed, table), key, 3)[2]);
      seen.insert(weights.begin(), weights.end());
    }
  }
  EXPECT_EQ(seen.size(), 2u * 3 * 8);
}

// Fixed for ever. The numbers are from the definition of SplitMix64's finaliser, worked out in Python's integers.
TEST(Initializer, GivesTheGoldenValues) {
  const uint64_t table_seed = RandomBits(7, HashBytes("user"));
  EXPECT_EQ(table_seed, 18139705373387366970u);
  EXPECT_EQ(Weights({InitializerKind::kUniform, 0.5}, table_seed, 12345, 3),
            (std::vector<float>{0.189275578f, -0.362297356f, 0.100702748f}));
  const std::vector<float> normal = Weights({InitializerKind::kNormal, 0.5}, table_seed, 12345, 3);
  const std::vector<float> expected = {0.495747209f, -0.0646371916f, -0.0180352088f};
  for (int i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(normal[i], expected[i]);
}

}  // namespace
}  // namespace sparrow
