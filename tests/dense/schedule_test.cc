#include "dense/schedule.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace sparrow {
namespace {

using ::testing::HasSubstr;

v1::ScheduleConfig Parse(const std::string& text) {
  v1::ScheduleConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

TEST(Schedule, WithoutAnythingTheFactorIsOne) {
  EXPECT_EQ(LearningRateFactor(v1::ScheduleConfig(), 0), 1);
  EXPECT_EQ(LearningRateFactor(v1::ScheduleConfig(), 1u << 30), 1);
}

TEST(Schedule, WarmUpRisesLinearlyToOne) {
  const v1::ScheduleConfig config = Parse("warmup_steps: 4");
  EXPECT_EQ(LearningRateFactor(config, 0), 0.25);
  EXPECT_EQ(LearningRateFactor(config, 1), 0.5);
  EXPECT_EQ(LearningRateFactor(config, 3), 1);
  EXPECT_EQ(LearningRateFactor(config, 4), 1);
}

TEST(Schedule, PolynomialDecayFollowsItsFormula) {
  const v1::ScheduleConfig config =
      Parse("warmup_steps: 2 polynomial { decay_start: 10 decay_steps: 4 power: 2 end_factor: 0.2 }");
  EXPECT_TRUE(CheckSchedule(config).ok());
  EXPECT_EQ(LearningRateFactor(config, 0), 0.5);
  EXPECT_EQ(LearningRateFactor(config, 5), 1);
  EXPECT_EQ(LearningRateFactor(config, 10), 1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 11), 0.2 + 0.8 * 0.5625);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 12), 0.2 + 0.8 * 0.25);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 14), 0.2);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 1'000'000), 0.2);
}

TEST(Schedule, CosineDecayFollowsItsFormula) {
  const v1::ScheduleConfig config = Parse("cosine { decay_start: 2 decay_steps: 4 end_factor: 0.1 }");
  EXPECT_TRUE(CheckSchedule(config).ok());
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 1), 1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 3), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 4), 0.55);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 6), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(config, 60), 0.1);
}

TEST(Schedule, BadFieldsAreNamedWithTheirValues) {
  const auto message = [](const std::string& text) { return std::string(CheckSchedule(Parse(text)).message()); };
  EXPECT_THAT(message("polynomial {}"), HasSubstr("train.schedule.polynomial.decay_steps is 0"));
  EXPECT_THAT(message("cosine {}"), HasSubstr("train.schedule.cosine.decay_steps is 0"));
  EXPECT_THAT(message("polynomial { decay_steps: 1 power: -1 }"), HasSubstr("polynomial.power is -1"));
  EXPECT_THAT(message("polynomial { decay_steps: 1 end_factor: 1.5 }"), HasSubstr("polynomial.end_factor is 1.5"));
  EXPECT_THAT(message("cosine { decay_steps: 1 end_factor: nan }"), HasSubstr("cosine.end_factor is nan"));
  EXPECT_TRUE(CheckSchedule(Parse("warmup_steps: 5")).ok());
}

}  // namespace
}  // namespace sparrow
