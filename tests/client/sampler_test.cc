#include "client/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;

// How often each token comes in 100,000 draws.
std::vector<double> Shares(const std::vector<float>& logits, const SamplingOptions& options) {
  constexpr int kDraws = 100000;
  std::vector<double> shares(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    shares[SampleToken(logits, options, RandomUniform(5, static_cast<uint64_t>(i)))] += 1.0 / kDraws;
  }
  return shares;
}

TEST(SampleToken, SharesAreThoseOfTheSoftmax) {
  const std::vector<float> logits = {std::log(1.0f), std::log(5.0f), std::log(2.0f), std::log(2.0f)};
  const std::vector<double> shares = Shares(logits, {});
  EXPECT_NEAR(shares[0], 0.1, 0.005);
  EXPECT_NEAR(shares[1], 0.5, 0.005);
  EXPECT_NEAR(shares[2], 0.2, 0.005);
  // The square of each, at half the temperature: 1, 25, 4, 4 of 34.
  EXPECT_NEAR(Shares(logits, {.temperature = 0.5})[1], 25.0 / 34, 0.005);
}

TEST(SampleToken, OnlyTheLikeliestMayComeAndOfEqualOnesTheFirst) {
  const std::vector<float> logits = {std::log(2.0f), std::log(1.0f), std::log(4.0f), std::log(2.0f)};
  const std::vector<double> two = Shares(logits, {.top_k = 2});
  EXPECT_NEAR(two[0], 2.0 / 6, 0.005);
  EXPECT_NEAR(two[2], 4.0 / 6, 0.005);
  EXPECT_EQ(two[1] + two[3], 0);
  EXPECT_NEAR(Shares(logits, {.top_k = 1})[2], 1, 1e-9);
  EXPECT_EQ(Shares(logits, {.top_k = 9}), Shares(logits, {}));
}

TEST(SampleToken, WithoutTemperatureTheLikeliestComes) {
  for (const double uniform : {0.0, 0.5, std::nextafter(1.0, 0.0)}) {
    EXPECT_EQ(SampleToken(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}, uniform), 1);
  }
}

TEST(SampleToken, ExtremesStayInside) {
  const std::vector<float> logits = {-1e30f, 0, 1e30f};
  for (const double uniform : {0.0, 0.5, std::nextafter(1.0, 0.0)}) {
    EXPECT_EQ(SampleToken(logits, {}, uniform), 2);
    EXPECT_EQ(SampleToken(std::vector<float>{7}, {}, uniform), 0);
  }
  EXPECT_EQ(SampleToken(std::vector<float>{0, 0, 0}, {}, std::nextafter(1.0, 0.0)), 2);
}

}  // namespace
}  // namespace sparrow
