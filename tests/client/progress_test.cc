#include "client/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparrow {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ProgressText, ALanguageModelsHasTokensAndTheShareOfThePeakOrSaysThatItIsNotKnown) {
  v1::Progress progress;
  progress.set_step(3);
  progress.set_samples_per_second(500000);
  EXPECT_THAT(ProgressText(progress, ""), HasSubstr("500000 samples/s"));
  EXPECT_THAT(ProgressText(progress, ""), Not(HasSubstr("MFU")));
  progress.set_rows_are_tokens(true);
  EXPECT_THAT(ProgressText(progress, ""), HasSubstr("500000 tokens/s"));
  EXPECT_THAT(ProgressText(progress, ""), HasSubstr("MFU unknown"));
  progress.set_peak_samples_per_second(1250000);
  EXPECT_THAT(ProgressText(progress, ""), HasSubstr("MFU 40.0 %"));
}

}  // namespace
}  // namespace sparrow
