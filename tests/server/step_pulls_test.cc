#include "server/step_pulls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparrow {
namespace {

using ::testing::HasSubstr;

TEST(StepPulls, IsCompleteOnceEveryPartOfEveryWorkerCame) {
  StepPulls pulls(7, 2, 10);
  EXPECT_TRUE(pulls.Note(1, 0, 1, 5).ok());
  EXPECT_TRUE(pulls.HasAllOf(1));
  EXPECT_TRUE(pulls.Note(0, 2, 3, 1).ok());
  EXPECT_TRUE(pulls.Note(0, 2, 3, 1).ok()) << "a repeated part is no news";
  EXPECT_TRUE(pulls.Note(0, 0, 3, 1).ok());
  EXPECT_FALSE(pulls.HasAllOf(0));
  EXPECT_FALSE(pulls.complete());
  EXPECT_TRUE(pulls.Note(0, 1, 3, 1).ok());
  EXPECT_TRUE(pulls.complete());
  EXPECT_EQ(pulls.keys(), 8u);
}

TEST(StepPulls, AnotherNumberOfPartsIsRefused) {
  StepPulls pulls(7, 1, 10);
  EXPECT_TRUE(pulls.Note(0, 0, 3, 1).ok());
  const absl::Status status = pulls.Note(0, 1, 2, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("worker 0 for step 7: part 1 of 2, but an earlier one was of 3"));
}

}  // namespace
}  // namespace sparrow
