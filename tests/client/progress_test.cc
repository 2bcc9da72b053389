#include "client/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <string>

namespace sparrow {
namespace {

using ::testing::EndsWith;
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

TEST(ProgressText, TheSplitOfAStepIsInItsOrderWithoutPartsThatTakeNoTime) {
  v1::Progress progress;
  progress.set_step(3);
  EXPECT_THAT(ProgressText(progress, ""), Not(HasSubstr("%")));
  auto& seconds = *progress.mutable_step_seconds();
  seconds["forward"] = 0.033;
  seconds["load"] = 0.0004;
  seconds["backward"] = 0.0606;
  seconds["allreduce"] = 0.004;
  seconds["optimizer"] = 0.002;
  EXPECT_THAT(ProgressText(progress, ""), EndsWith("  forward 33 % backward 61 % allreduce 4 % optimizer 2 %"));
  seconds["load"] = 0.1;
  EXPECT_THAT(ProgressText(progress, ""), HasSubstr("  load 50 % forward 17 % backward 30 %"));
}

// What is drawn on a terminal of so many columns.
std::string DrawnOn(uint16_t columns, const v1::JobStatus& status) {
  int terminal = -1, other_end = -1;
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(openpty(&other_end, &terminal, nullptr, nullptr, &size), 0);
  std::FILE* const out = fdopen(terminal, "w");
  char drawn[1024] = {};
  {
    ProgressView view(out, /*terminal=*/true);
    view.Update(status, absl::UnixEpoch());
    EXPECT_GT(read(other_end, drawn, sizeof(drawn) - 1), 0);
  }
  std::fclose(out);
  close(other_end);
  return drawn;
}

TEST(ProgressView, ABarIsCutAtTheTerminalsWidth) {
  v1::JobStatus status;
  status.mutable_progress()->set_step(5);
  status.mutable_progress()->set_steps_total(10);
  EXPECT_EQ(DrawnOn(40, status), "\r[############............]  50%  step 5\033[K");
  EXPECT_EQ(DrawnOn(200, status), "\r[############............]  50%  step 5/10  0 samples/s  loss 0.0000\033[K");
}

}  // namespace
}  // namespace sparrow
