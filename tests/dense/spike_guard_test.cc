#include "dense/spike_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::LossSpike Config(uint32_t window, double loss_factor = 1.5, double norm_factor = 4) {
  v1::LossSpike config;
  config.set_window(window);
  config.set_loss_factor(loss_factor);
  config.set_norm_factor(norm_factor);
  config.set_skips_max(2);
  return config;
}

TEST(SpikeGuard, JudgesNothingBeforeTheWindowIsFull) {
  SpikeGuard guard(Config(3));
  for (const double loss : {1.0, 1e9, 1.0}) EXPECT_TRUE(guard.Accept({.loss = loss, .norm = loss}));
  EXPECT_FALSE(guard.Accept({.loss = 1.6, .norm = 1}));
}

TEST(SpikeGuard, TheBoundIsAFactorOfTheMedian) {
  SpikeGuard guard(Config(3));
  for (const double figure : {2.0, 100.0, 3.0}) EXPECT_TRUE(guard.Accept({.loss = figure, .norm = 2 * figure}));
  EXPECT_FALSE(guard.Accept({.loss = 4.51, .norm = 1})) << "of a median of 3";
  EXPECT_FALSE(guard.Accept({.loss = 4.5, .norm = 24.01})) << "of a median of 6";
  EXPECT_TRUE(guard.Accept({.loss = 4.5, .norm = 24}));
  // 100, 3 and 4.5 are left: what was refused is not among them.
  EXPECT_TRUE(guard.Accept({.loss = 6.75, .norm = 1}));
}

TEST(SpikeGuard, WhatIsNotFiniteStandsOut) {
  for (const double strange : {std::nan(""), HUGE_VAL}) {
    SpikeGuard guard(Config(2));
    EXPECT_TRUE(guard.Accept({.loss = 1, .norm = 1}) && guard.Accept({.loss = 1, .norm = 1}));
    EXPECT_FALSE(guard.Accept({.loss = strange, .norm = 1}));
    EXPECT_FALSE(guard.Accept({.loss = 1, .norm = strange}));
  }
}

TEST(SpikeGuard, SaysWhy) {
  SpikeGuard guard(Config(2));
  EXPECT_TRUE(guard.Accept({.loss = 2, .norm = 3}) && guard.Accept({.loss = 2, .norm = 3}));
  EXPECT_FALSE(guard.Accept({.loss = 7, .norm = 3}));
  EXPECT_EQ(guard.why(),
            "the loss is 7, more than 1.5 times 2, the median of the last 2 steps that were applied "
            "(train.loss_spike.loss_factor)");
  EXPECT_FALSE(guard.Accept({.loss = 7, .norm = 30}));
  EXPECT_THAT(guard.why(),
              AllOf(HasSubstr("the loss is 7"), HasSubstr("the gradients' norm is 30, more than 4 times 3")));
  EXPECT_TRUE(guard.Accept({.loss = 2, .norm = 3}));
  EXPECT_EQ(guard.why(), "");
}

TEST(SpikeGuard, IsExhaustedByTooManyInARow) {
  SpikeGuard guard(Config(2));
  EXPECT_TRUE(guard.Accept({.loss = 1, .norm = 1}) && guard.Accept({.loss = 1, .norm = 1}));
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(guard.Accept({.loss = 9, .norm = 1}) || guard.Accept({.loss = 9, .norm = 1}));
    EXPECT_FALSE(guard.exhausted());
    EXPECT_TRUE(guard.Accept({.loss = 1, .norm = 1}));
  }
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(guard.Accept({.loss = 9, .norm = 1}));
  EXPECT_TRUE(guard.exhausted());
}

// Against the rule as it is written down, over random figures with spikes among them.
TEST(SpikeGuard, EqualsThePlainRule) {
  for (const uint32_t window : {2u, 3u, 10u, 51u}) {
    SpikeGuard guard(Config(window, 1.2, 2));
    std::vector<double> losses, norms;
    const auto median = [&](std::vector<double> values) {
      values.erase(values.begin(), values.end() - window);
      std::sort(values.begin(), values.end());
      return values[window / 2];
    };
    int refused = 0;
    for (uint64_t step = 0; step < 500; ++step) {
      const double loss = 1 + 0.3 * RandomUniform(1, step), norm = std::exp(RandomNormal(2, step));
      bool expected = true;
      if (losses.size() >= window) expected = loss <= 1.2 * median(losses) && norm <= 2 * median(norms);
      ASSERT_EQ(guard.Accept({.loss = loss, .norm = norm}), expected) << window << " " << step;
      if (expected) losses.push_back(loss), norms.push_back(norm);
      refused += expected ? 0 : 1;
    }
    EXPECT_GT(refused, 20);
  }
}

TEST(SpikeGuard, ResumedDecidesAsBefore) {
  const v1::LossSpike config = Config(7, 1.2, 2);
  SpikeGuard whole(config);
  for (uint64_t step = 0; step < 300; ++step) {
    SpikeGuard resumed(config);
    const auto state = SpikeGuard::State::Parse(whole.state().Text());
    ASSERT_TRUE(state.has_value()) << whole.state().Text();
    EXPECT_EQ(*state, whole.state());
    resumed.Resume(*state);
    const SpikeGuard::Figures figures = {.loss = 1 + 0.3 * RandomUniform(1, step), .norm = RandomUniform(2, step) / 3};
    EXPECT_EQ(resumed.Accept(figures), whole.Accept(figures));
    EXPECT_EQ(resumed.state(), whole.state());
  }
}

TEST(SpikeGuard, ASmallerWindowTakesTheLatestFigures) {
  SpikeGuard guard(Config(2));
  guard.Resume({.applied = {{1, 1}, {2, 2}, {3, 3}}, .skips = 1});
  EXPECT_EQ(guard.state(), (SpikeGuard::State{.applied = {{2, 2}, {3, 3}}, .skips = 1}));
}

TEST(SpikeGuard, TextThatIsNoneIsRefused) {
  for (const char* text :
       {"", "x", "1 ", "1 0x1p0", "1 0x1p0,", "1 0x1p0,nan", "1 inf,0x1p0", "-1", "1 0x1p0,0x1p0x"}) {
    EXPECT_FALSE(SpikeGuard::State::Parse(text).has_value()) << text;
  }
  EXPECT_EQ(SpikeGuard::State::Parse("3 0x1.8p0,0x1p1"), (SpikeGuard::State{.applied = {{1.5, 2}}, .skips = 3}));
}

TEST(SpikeGuard, BadConfigurationIsNamed) {
  const auto message = [](const v1::LossSpike& config) { return std::string(CheckLossSpike(config).message()); };
  EXPECT_EQ(message(Config(2)), "");
  EXPECT_EQ(message(v1::LossSpike()), "");
  EXPECT_THAT(message(Config(1)), HasSubstr("window is 1, expected 2 to 1000"));
  EXPECT_THAT(message(Config(1001)), HasSubstr("window is 1001"));
  EXPECT_THAT(message(Config(2, 1)), HasSubstr("loss_factor is 1"));
  EXPECT_THAT(message(Config(2, std::nan(""))), HasSubstr("loss_factor is nan"));
  EXPECT_THAT(message(Config(2, 2, HUGE_VAL)), HasSubstr("norm_factor is inf"));
  v1::LossSpike config = Config(2);
  config.set_skips_max(0);
  EXPECT_THAT(message(config), HasSubstr("skips_max is 0"));
}

}  // namespace
}  // namespace sparrow
