// Whole training runs with weights at rest in 16 bits, against the same run in float32.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training_run.h"

namespace sparrow {
namespace {

constexpr int kTables = 26;
constexpr size_t kLast = 100;  // Steps whose mean loss is compared.

// The quickstart job on a small log of its own kind.
class Storage : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const RunResult gen = RunProgram({ProgramPath("sparrowctl"), "gen", "clicks", "--rows", "60000", "--out",
                                      directory_.File("clicks.tsv"), "--test-rows", "10000", "--test-out",
                                      directory_.File("clicks.test.tsv")});
    ASSERT_EQ(gen.status, 0) << gen.err;
  }

  TrainingRun Trained(const std::string& storage) {
    TrainingRunOptions options{.job = "deploy/jobs/quickstart.textproto",
                               .flags = {},
                               .sets = {"train.batch_size=128", "eval.every_steps=0", "train.loss_every_steps=1"},
                               .coordinator = "",
                               .data_root = directory_.path()};
    for (int table = 0; table < kTables; ++table) {
      options.sets.push_back(absl::StrCat("tables[", table, "].storage=", storage));
    }
    return Train(options);
  }

  TemporaryDirectory directory_;
};
INSTANTIATE_TEST_SUITE_P(Types, Storage, ::testing::Values("BFLOAT16", "FLOAT16"),
                         [](const auto& info) { return info.param; });

double MeanOfLast(const TrainingRun& run) {
  return std::accumulate(run.losses.end() - kLast, run.losses.end(), 0.0) / kLast;
}

TEST_P(Storage, LearnsWhatFloat32LearnsAndTwoRunsAreBitEqual) {
  const TrainingRun whole = Trained("FLOAT32"), half = Trained(GetParam()), again = Trained(GetParam());
  for (const TrainingRun* run : {&whole, &half, &again}) {
    ASSERT_EQ(run->status, 0) << run->err;
    ASSERT_EQ(run->losses.size(), 469u);  // Of 128 rows.
  }
  EXPECT_NE(half.losses, whole.losses) << "it is another storage";
  EXPECT_EQ(half.losses, again.losses);
  EXPECT_LT(MeanOfLast(whole), std::log(2.0)) << "there is something to learn";
  EXPECT_NEAR(MeanOfLast(half), MeanOfLast(whole), 0.01 * MeanOfLast(whole));
  EXPECT_NEAR(half.summary["eval_auc"].get<double>(), whole.summary["eval_auc"].get<double>(), 0.003);
  RecordProperty("eval_auc_float32", absl::StrCat(whole.summary["eval_auc"].get<double>()));
  RecordProperty("eval_auc", absl::StrCat(half.summary["eval_auc"].get<double>()));
}

}  // namespace
}  // namespace sparrow
