#include "dense/loss_scaler.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "base/random.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

v1::LossScale Parse(const std::string& text) {
  v1::LossScale config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

TEST(LossScaler, TwoThousandGoodStepsDoubleTheScaleAndAnOverflowHalvesIt) {
  LossScaler scaler{v1::LossScale()};
  EXPECT_EQ(scaler.state().scale, 65536u);
  for (int step = 1; step < 2000; ++step) ASSERT_TRUE(scaler.Update(/*overflowed=*/false));
  EXPECT_EQ(scaler.state(), (LossScaler::State{.scale = 65536, .good_steps = 1999}));
  EXPECT_TRUE(scaler.Update(false));
  EXPECT_EQ(scaler.state(), (LossScaler::State{.scale = 131072, .good_steps = 0}));
  EXPECT_TRUE(scaler.Update(false));
  EXPECT_TRUE(scaler.Update(true));
  EXPECT_EQ(scaler.state(), (LossScaler::State{.scale = 65536, .good_steps = 0}));
}

TEST(LossScaler, AnOverflowWithTheSmallestScaleIsTheEnd) {
  LossScaler scaler(Parse("initial: 4 min: 2 growth_steps: 2"));
  EXPECT_TRUE(scaler.Update(true));
  EXPECT_TRUE(scaler.Update(false));
  EXPECT_FALSE(scaler.Update(true));
  EXPECT_EQ(scaler.state(), (LossScaler::State{.scale = 2, .good_steps = 1}));
}

TEST(LossScaler, ScaleAndCountAreThoseOfTheLastStepsInEveryHistory) {
  constexpr uint64_t kSeed = 71;
  for (uint64_t run = 0; run < 200; ++run) {
    const auto draw = [&](uint64_t i, uint64_t below) { return RandomBits(kSeed + run, i) % below; };
    v1::LossScale config;
    const uint32_t min = static_cast<uint32_t>(draw(0, 4)), span = static_cast<uint32_t>(draw(1, 10));
    config.set_min(1u << min);
    config.set_max(1u << (min + span));
    config.set_initial(1u << (min + draw(2, span + 1)));
    config.set_growth_steps(static_cast<uint32_t>(1 + draw(3, 5)));
    ASSERT_TRUE(CheckLossScale(config).ok());
    LossScaler scaler(config), resumed(config);
    const uint64_t rarity = 2 + draw(4, 8);
    for (uint64_t step = 0; step < 300; ++step) {
      const LossScaler::State before = scaler.state();
      const bool overflowed = draw(10 + step, rarity) == 0;
      const bool goes_on = scaler.Update(overflowed);
      const LossScaler::State after = scaler.state();
      ASSERT_TRUE(std::has_single_bit(after.scale));
      ASSERT_GE(after.scale, config.min());
      ASSERT_LE(after.scale, config.max());
      ASSERT_LT(after.good_steps, config.growth_steps());
      if (overflowed) {
        ASSERT_EQ(goes_on, before.scale > config.min());
        ASSERT_EQ(after, goes_on ? (LossScaler::State{.scale = before.scale / 2, .good_steps = 0}) : before);
      } else if (before.good_steps + 1 == config.growth_steps()) {
        ASSERT_EQ(after.scale, before.scale == config.max() ? before.scale : before.scale * 2);
        ASSERT_EQ(after.good_steps, 0u);
      } else {
        ASSERT_EQ(after, (LossScaler::State{.scale = before.scale, .good_steps = before.good_steps + 1}));
      }
      resumed.Resume(before);  // As from a checkpoint, at every step.
      ASSERT_EQ(resumed.Update(overflowed), goes_on);
      ASSERT_EQ(resumed.state(), after) << "seed " << kSeed + run << ", step " << step;
    }
  }
}

TEST(LossScaler, WhatIsResumedIsBroughtWithinTheBounds) {
  LossScaler scaler(Parse("initial: 16 min: 8 max: 32 growth_steps: 3"));
  scaler.Resume({.scale = 1024, .good_steps = 2});
  EXPECT_EQ(scaler.state().scale, 32u);
  scaler.Resume({.scale = 1, .good_steps = 7});
  EXPECT_EQ(scaler.state().scale, 8u);
  EXPECT_TRUE(scaler.Update(false));
  EXPECT_EQ(scaler.state(), (LossScaler::State{.scale = 16, .good_steps = 0}));
}

TEST(LossScaler, WhatIsOutOfRangeIsRefusedByName) {
  EXPECT_TRUE(CheckLossScale(v1::LossScale()).ok());
  EXPECT_TRUE(CheckLossScale(Parse("initial: 1 max: 1")).ok());
  const auto refusal = [](const std::string& text) { return std::string(CheckLossScale(Parse(text)).message()); };
  EXPECT_EQ(refusal("initial: 1000"), "train.loss_scale.initial is 1000, expected a power of two from 1 to 16777216");
  EXPECT_THAT(refusal("initial: 33554432"), HasSubstr("train.loss_scale.initial is 33554432"));
  EXPECT_THAT(refusal("min: 0"), HasSubstr("train.loss_scale.min is 0"));
  EXPECT_THAT(refusal("max: 33554432"), HasSubstr("train.loss_scale.max is 33554432"));
  EXPECT_EQ(refusal("max: 32"), "train.loss_scale.initial is 65536, expected min to max, 1 to 32");
  EXPECT_THAT(refusal("min: 131072"), HasSubstr("expected min to max, 131072 to 16777216"));
  EXPECT_THAT(refusal("growth_steps: 0"), HasSubstr("train.loss_scale.growth_steps is 0"));
}

}  // namespace
}  // namespace sparrow
