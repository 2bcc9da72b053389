// sparrowctl predict by the real program, and what becomes of a file without labels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

class PredictTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(Ctl({"gen", "clicks", "--rows", "4000", "--out", "clicks.tsv", "--test-rows", "500", "--test-out",
                   "clicks.test.tsv"})
                  .status,
              0);
    const RunResult run = Ctl({"run", job_, "--memory", "256MiB"});
    ASSERT_EQ(run.status, 0) << run.out << run.err;
    const auto checkpoints = *MatchFiles(directory_.File("checkpoints"), "*/step-*");
    ASSERT_EQ(checkpoints.size(), 1u);
    checkpoint_ = checkpoints[0];
    // The test file without its first column.
    std::vector<std::string> lines = absl::StrSplit(*ReadFile(directory_.File("clicks.test.tsv")), '\n');
    for (std::string& line : lines) line = line.substr(std::min<size_t>(line.size(), 2));
    ASSERT_TRUE(WriteFileAtomically(directory_.File("test.txt"), absl::StrJoin(lines, "\n")).ok());
  }

  RunResult Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ProgramPath("sparrowctl"));
    return RunProgram(arguments, absl::Seconds(60), {.directory = directory_.path(), .environment = {}});
  }

  const std::string job_ = absl::StrCat(SPARROW_SOURCE_DIR, "/deploy/jobs/quickstart.textproto");
  const TemporaryDirectory directory_;
  std::string checkpoint_;
};

TEST_F(PredictTest, LabelledOrNotTheProbabilitiesAreTheSame) {
  const RunResult labelled = Ctl({"predict", checkpoint_, "--to", "labelled.csv"});
  ASSERT_EQ(labelled.status, 0) << labelled.err;
  EXPECT_EQ(labelled.out, "labelled.csv: 500 rows\n");
  ASSERT_EQ(Ctl({"evaluate", checkpoint_, "--predictions", "evaluated.csv"}).status, 0);
  const std::string expected = *ReadFile(directory_.File("labelled.csv"));
  EXPECT_EQ(expected, *ReadFile(directory_.File("evaluated.csv")));

  const std::vector<std::string> unlabelled = {"--set", "data.test.path=test.txt", "--set",
                                               "data.test.unlabelled=true"};
  std::vector<std::string> predict = {"predict", checkpoint_, "--to", "unlabelled.csv"};
  predict.insert(predict.end(), unlabelled.begin(), unlabelled.end());
  const RunResult run = Ctl(predict);
  ASSERT_EQ(run.status, 0) << run.err;
  std::vector<std::string> lines = absl::StrSplit(expected, '\n');
  ASSERT_EQ(lines.size(), 502u);  // A header, the rows, nothing after the last line.
  EXPECT_EQ(lines[0], "row,label,probability");
  for (size_t i = 1; i <= 500; ++i) {
    const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
    ASSERT_EQ(fields.size(), 3u) << lines[i];
    EXPECT_EQ(fields[0], absl::StrCat(i - 1));
    lines[i] = absl::StrCat(fields[0], ",,", fields[2]);
  }
  EXPECT_EQ(*ReadFile(directory_.File("unlabelled.csv")), absl::StrJoin(lines, "\n"));

  // What may be read so is not evaluated or trained on.
  std::vector<std::string> evaluate = {"evaluate", checkpoint_};
  evaluate.insert(evaluate.end(), unlabelled.begin(), unlabelled.end());
  const RunResult evaluated = Ctl(evaluate);
  EXPECT_EQ(evaluated.status, 1);
  EXPECT_THAT(evaluated.err, HasSubstr("data.test.unlabelled is true, but evaluation needs labels"));
  const RunResult trained =
      Ctl({"run", job_, "--set", "data.train.path=test.txt", "--set", "data.train.unlabelled=true"});
  EXPECT_EQ(trained.status, 1);
  EXPECT_THAT(trained.err, HasSubstr("data.train.unlabelled is true, but training needs labels"));
  std::vector<std::string> check = {"data", "check", job_};
  check.insert(check.end(), unlabelled.begin(), unlabelled.end());
  const RunResult checked = Ctl(check);
  EXPECT_EQ(checked.status, 0) << checked.out << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("labels: none (unlabelled)"));
}

TEST_F(PredictTest, WrongUseIsAnErrorOfOneLineAndLeavesNoFile) {
  // Without the switch, the error says what the file lacks.
  const RunResult bare = Ctl({"predict", checkpoint_, "--to", "p.csv", "--set", "data.test.path=test.txt"});
  EXPECT_EQ(bare.status, 1);
  EXPECT_THAT(bare.err, HasSubstr("test.txt:1: 39 fields, expected 40 (label missing?)"));
  EXPECT_THAT(bare.err, HasSubstr("unlabelled: true"));
  const RunResult absent = Ctl({"predict", checkpoint_, "--to", "p.csv", "--set", "data.test.path=absent"});
  EXPECT_EQ(absent.status, 1);
  EXPECT_THAT(absent.err, HasSubstr("absent"));
  const RunResult other = Ctl({"predict", checkpoint_, "--to", "p.csv", "--set", "features[2].modulo=1000"});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.err, HasSubstr("features[2].modulo"));
  EXPECT_EQ(Ctl({"predict", "none", "--to", "p.csv"}).status, 1);
  EXPECT_EQ(Ctl({"predict", checkpoint_}).status, 2);
  for (const RunResult& run : {bare, absent, other}) {
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
  EXPECT_FALSE(std::filesystem::exists(directory_.File("p.csv")));
  EXPECT_FALSE(std::filesystem::exists(directory_.File("p.csv.tmp")));
}

}  // namespace
}  // namespace sparrow
