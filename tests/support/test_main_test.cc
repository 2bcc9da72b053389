// How a test program ends where tests are skipped: it runs itself on samples that are disabled otherwise.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

TEST(DISABLED_Sample, Passes) {}
TEST(DISABLED_Sample, Skips) { GTEST_SKIP() << "no such\nmachine here"; }
TEST(DISABLED_Sample, SkipsToo) { GTEST_SKIP() << "nor this"; }
TEST(DISABLED_Sample, Fails) { FAIL(); }

class TestMain : public testing::Test {
 protected:
  // The exit status of a run of these samples.
  int Run(const std::string& samples) {
    const std::string self = std::filesystem::canonical("/proc/self/exe").string();
    return RunProgram({self, "--gtest_also_run_disabled_tests", "--gtest_filter=" + samples}, absl::Seconds(60),
                      {.directory = "", .environment = {"SPARROW_SKIPPED=" + directory_.File("skipped")}})
        .status;
  }
  std::string Skipped() { return ReadFile(directory_.File("skipped")).value_or(""); }

  const TemporaryDirectory directory_;
};

TEST_F(TestMain, AProgramWhoseTestsWereAllSkippedEndsWith77AndTellsWhy) {
  EXPECT_EQ(Run("*Sample.Skips*"), 77);
  EXPECT_EQ(Skipped(),
            "support_test_main_test\tall\tDISABLED_Sample.Skips\tno such machine here\n"
            "support_test_main_test\tall\tDISABLED_Sample.SkipsToo\tnor this\n");
}

TEST_F(TestMain, AProgramThatRanSomethingHasPassedAndTellsWhatItSkipped) {
  EXPECT_EQ(Run("*Sample.Passes:*Sample.Skips"), 0);
  EXPECT_EQ(Skipped(), "support_test_main_test\tpart\tDISABLED_Sample.Skips\tno such machine here\n");
}

TEST_F(TestMain, AFailureStaysOneWhateverWasSkipped) {
  EXPECT_EQ(Run("*Sample.Fails:*Sample.Skips*"), 1);
  EXPECT_EQ(Run("*Sample.Fails"), 1);
}

TEST_F(TestMain, WithoutSkipsNothingIsWritten) {
  EXPECT_EQ(Run("*Sample.Passes"), 0);
  EXPECT_EQ(Skipped(), "");
}

}  // namespace
}  // namespace sparrow
