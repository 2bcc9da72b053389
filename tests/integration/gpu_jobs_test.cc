// A job with --device cuda:0 gives the CPU's losses: in full precision to the last digits, until a last bit decides
// whether a unit is on; in 16 bits as a model. Whatever one device has saved, the other goes on from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/gpu.h"
#include "tests/support/gpu_hog.h"
#include "tests/support/local_cluster.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training_run.h"

namespace sparrow {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

struct JobCase {
  std::string name;
  std::string job;
  std::string data_root;  // Relative to the project's root.
  std::vector<std::string> sets;
  size_t steps;      // Of 1e-5.
  std::string test;  // Rows to evaluate, where the job has none itself.
};

void PrintTo(const JobCase& job, std::ostream* out) { *out << job.name; }

class GpuJobs : public OnGpu<::testing::TestWithParam<JobCase>> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    root_ = absl::StrCat(SPARROW_SOURCE_DIR, "/", GetParam().data_root);
    if (!std::filesystem::exists(root_)) GTEST_SKIP() << "THE DATA IS NOT HERE: " << root_;
  }

  TrainingRun Run(const std::string& device, std::vector<std::string> sets, std::vector<std::string> flags = {}) const {
    flags.insert(flags.end(), {"--device", device});
    sets.insert(sets.end(), GetParam().sets.begin(), GetParam().sets.end());
    sets.push_back("train.loss_every_steps=1");
    return Train({.job = GetParam().job,
                  .flags = flags,
                  .sets = sets,
                  .coordinator = "",
                  .data_root = root_,
                  .checkpoint_root = directory_.path()});
  }

  TemporaryDirectory directory_;
  std::string root_;
};

double Relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

TEST_P(GpuJobs, FullPrecisionGivesTheLossesOfTheCpu) {
  const std::string steps = absl::StrCat("train.steps_max=", GetParam().steps);
  const TrainingRun cpu = Run("cpu", {steps});
  ASSERT_EQ(cpu.status, 0) << cpu.err;
  const TrainingRun gpu = Run("cuda:0", {steps, "train.precision=FULL", "train.deterministic=true"});
  ASSERT_EQ(gpu.status, 0) << gpu.err;
  ASSERT_EQ(gpu.losses.size(), cpu.losses.size());
  for (size_t i = 0; i < cpu.losses.size(); ++i) {
    ASSERT_LT(Relative(gpu.losses[i], cpu.losses[i]), 1e-5)
        << "step " << i << ": " << gpu.losses[i] << " against " << cpu.losses[i];
  }
  EXPECT_GT(gpu.summary["step_seconds"]["h2d"], 0);
}

TEST_P(GpuJobs, ClippingIsTheCpus) {
  const std::string steps = "train.steps_max=10", clip = "train.clip_norm=0.05";
  const TrainingRun cpu = Run("cpu", {steps, clip});
  const TrainingRun gpu = Run("cuda:0", {steps, clip, "train.precision=FULL", "train.deterministic=true"});
  const TrainingRun whole = Run("cuda:0", {steps, "train.precision=FULL", "train.deterministic=true"});
  ASSERT_EQ(cpu.status, 0) << cpu.err;
  ASSERT_EQ(gpu.status, 0) << gpu.err;
  for (size_t i = 0; i < cpu.losses.size(); ++i)
    ASSERT_LT(Relative(gpu.losses[i], cpu.losses[i]), 1e-5) << "step " << i;
  EXPECT_NE(gpu.losses, whole.losses);
}

TEST_P(GpuJobs, TwoDeterministicRunsAreEqualBitForBit) {
  for (const char* precision : {"FULL", "BFLOAT16", "FLOAT16"}) {
    const std::vector<std::string> sets = {"train.steps_max=50", absl::StrCat("train.precision=", precision),
                                           "train.deterministic=true"};
    const TrainingRun first = Run("cuda:0", sets), second = Run("cuda:0", sets);
    ASSERT_EQ(first.status, 0) << first.err;
    EXPECT_EQ(first.losses, second.losses) << precision;
  }
}

void ExpectEquallyGoodModels(const TrainingRun& gpu, const TrainingRun& cpu) {
  ASSERT_EQ(cpu.status, 0) << cpu.err;
  ASSERT_EQ(gpu.status, 0) << gpu.err;
  ASSERT_EQ(gpu.losses.size(), cpu.losses.size());
  // The first epoch of the golden jobs: later a few thousand parameters learn a thousand rows by heart, in different
  // ways.
  const auto mean_of_20 = [](const TrainingRun& run) {
    return std::accumulate(run.losses.begin(), run.losses.begin() + 20, 0.0) / 20;
  };
  EXPECT_LT(Relative(mean_of_20(gpu), mean_of_20(cpu)), 0.02)
      << ::testing::PrintToString(gpu.losses) << " against " << ::testing::PrintToString(cpu.losses);
  if (cpu.summary["eval_auc"].is_number()) {
    EXPECT_NEAR(gpu.summary["eval_auc"], cpu.summary["eval_auc"], 0.005);
  }
}

TEST_P(GpuJobs, SixteenBitsTrainAnEquallyGoodModel) {
  const TrainingRun cpu = Run("cpu", {"train.steps_max=2000"});
  for (const char* precision : {"BFLOAT16", "FLOAT16"}) {
    SCOPED_TRACE(precision);
    const TrainingRun gpu = Run("cuda:0", {"train.steps_max=2000", absl::StrCat("train.precision=", precision)});
    ExpectEquallyGoodModels(gpu, cpu);
    // None but in float16, and few there.
    EXPECT_LT(gpu.summary["steps_skipped"].get<double>(), 0.02 * gpu.summary["steps"].get<double>() + 5);
  }
}

// Under the largest scale all gradients overflow; from half of it to half of it, step by step, it comes to one that
// fits. growth_steps is small enough for the search to go on.
const std::vector<std::string> kSearch = {"train.precision=FLOAT16", "train.loss_scale.initial=16777216",
                                          "train.loss_scale.growth_steps=7", "train.deterministic=true"};

TEST_P(GpuJobs, StepsThatOverflowAreSkippedAndThenItTrains) {
  const auto run = [&](std::vector<std::string> sets) {
    sets.insert(sets.end(), kSearch.begin(), kSearch.end());
    sets.push_back("train.steps_max=60");
    TrainingRun done = Run("cuda:0", sets);
    EXPECT_EQ(done.status, 0) << done.err;
    return done;
  };
  const TrainingRun held = run({"train.hot_rows.rows=0"});
  const int skipped = held.summary["steps_skipped"];
  EXPECT_GE(skipped, 4);
  EXPECT_LT(skipped, 30);
  EXPECT_THAT(held.out, HasSubstr(absl::StrCat("(", skipped, " were skipped")));
  for (const char* rows : {"300", "1000000"}) {
    const TrainingRun some = run({absl::StrCat("train.hot_rows.rows=", rows)});
    EXPECT_EQ(some.losses, held.losses) << rows;
    EXPECT_EQ(some.summary["steps_skipped"], skipped) << rows;
  }
  const TrainingRun servers = run({});
  EXPECT_EQ(servers.summary["steps_skipped"], skipped);
  ASSERT_EQ(servers.losses.size(), held.losses.size());
  for (size_t i = 0; i < held.losses.size(); ++i) {
    EXPECT_LT(Relative(held.losses[i], servers.losses[i]), 1e-5) << "step " << i;
  }
  // The same batches, of which the first ones taught nothing.
  const TrainingRun fits = Run("cuda:0", {"train.precision=FLOAT16", "train.loss_scale.initial=1024",
                                          "train.deterministic=true", "train.steps_max=60"});
  ASSERT_EQ(fits.status, 0) << fits.err;
  EXPECT_EQ(fits.summary["steps_skipped"], 0);
  EXPECT_EQ(servers.losses[0], fits.losses[0]);
  EXPECT_NE(servers.losses, fits.losses);
}

TEST_P(GpuJobs, ARunInFloat16GoesOnBitForBit) {
  for (const char* rows : {"", "300"}) {  // Held by servers; held on the GPU.
    const auto sets = [&](int steps) {
      std::vector<std::string> all = kSearch;
      all.push_back(absl::StrCat("train.steps_max=", steps));
      if (*rows != 0) all.push_back(absl::StrCat("train.hot_rows.rows=", rows));
      return all;
    };
    const TrainingRun whole = Run("cuda:0", sets(30));
    ASSERT_EQ(whole.status, 0) << whole.err;
    for (const int cut : {3, 17}) {
      const TrainingRun begun = Run("cuda:0", sets(cut));
      ASSERT_EQ(begun.status, 0) << begun.err;
      const TrainingRun ended = Run("cuda:0", sets(30), {"--resume", begun.summary["checkpoint"].get<std::string>()});
      ASSERT_EQ(ended.status, 0) << ended.err;
      EXPECT_EQ(ended.losses, std::vector<double>(whole.losses.begin() + cut, whole.losses.end()))
          << rows << " " << cut;
      EXPECT_EQ(begun.summary["steps_skipped"].get<int>() + ended.summary["steps_skipped"].get<int>(),
                whole.summary["steps_skipped"].get<int>());
    }
  }
}

TEST_P(GpuJobs, AScaleThatCannotBeLoweredEndsTheJob) {
  const TrainingRun run = Run("cuda:0", {"train.precision=FLOAT16", "train.loss_scale.initial=16777216",
                                         "train.loss_scale.min=8388608", "train.steps_max=5"});
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("step 1: gradients are not finite, though the loss scale is 8388608, the smallest"));
}

TEST_P(GpuJobs, EachDeviceGoesOnFromWhatTheOtherSaved) {
  const std::vector<std::string> exact = {"train.precision=FULL", "train.deterministic=true"};
  const auto sets = [&](int steps) {
    std::vector<std::string> all = exact;
    all.push_back(absl::StrCat("train.steps_max=", steps));
    return all;
  };
  const TrainingRun whole = Run("cpu", sets(20));
  ASSERT_EQ(whole.status, 0) << whole.err;
  for (const auto& [first, second] :
       {std::pair("cpu", "cuda:0"), std::pair("cuda:0", "cpu"), std::pair("cuda:0", "cuda:0")}) {
    const TrainingRun begun = Run(first, sets(10));
    ASSERT_EQ(begun.status, 0) << begun.err;
    const TrainingRun ended = Run(second, sets(20), {"--resume", begun.summary["checkpoint"].get<std::string>()});
    ASSERT_EQ(ended.status, 0) << ended.err;
    ASSERT_EQ(ended.losses.size(), 10u);
    for (size_t i = 0; i < 10; ++i) {
      EXPECT_LT(Relative(ended.losses[i], whole.losses[10 + i]), 1e-5) << first << " then " << second << ", step " << i;
    }
  }
}

TEST_P(GpuJobs, RowsHeldOnTheGpuChangeNoBitWhateverTheirNumber) {
  const auto run = [&](const std::string& budget, const std::string& precision) {
    std::vector<std::string> sets = {"train.steps_max=60", "train.precision=" + precision, "train.deterministic=true"};
    if (!budget.empty()) sets.push_back("train.hot_rows.rows=" + budget);
    TrainingRun done = Run("cuda:0", sets);
    EXPECT_EQ(done.status, 0) << done.err;
    return done;
  };
  for (const char* precision : {"FULL", "BFLOAT16", "FLOAT16"}) {
    const TrainingRun none = run("0", precision);  // Every row comes and goes in every step.
    for (const char* budget : {"300", "1000000"}) {
      const TrainingRun some = run(budget, precision);
      EXPECT_EQ(some.losses, none.losses) << precision << ", " << budget;
      EXPECT_EQ(some.summary["eval_loss"], none.summary["eval_loss"]) << precision << ", " << budget;
    }
    // Rows that servers hold and update: the same sums, the same arithmetic.
    const TrainingRun servers = run("", precision);
    EXPECT_EQ(servers.losses, none.losses) << precision;
  }
}

TEST_P(GpuJobs, EvaluationsOnTheWayChangeNothing) {
  for (const char* rows : {"", "300"}) {  // Held by servers; held on the GPU.
    std::vector<std::string> sets = {"train.steps_max=40", "train.deterministic=true"};
    if (*rows != 0) sets.push_back(absl::StrCat("train.hot_rows.rows=", rows));
    if (!GetParam().test.empty()) sets.push_back("data.test.path=" + GetParam().test);
    const TrainingRun without = Run("cuda:0", sets);
    ASSERT_EQ(without.status, 0) << without.err;
    sets.push_back("eval.every_steps=7");
    const TrainingRun with = Run("cuda:0", sets);
    ASSERT_EQ(with.status, 0) << with.err;
    EXPECT_EQ(with.losses, without.losses) << rows;
    EXPECT_EQ(with.summary["eval_loss"], without.summary["eval_loss"]) << rows;
  }
}

TEST_P(GpuJobs, RowsHeldOnTheGpuAreInTheCheckpoint) {
  const std::vector<std::string> exact = {"train.precision=FULL", "train.deterministic=true"};
  const auto sets = [&](int steps, const char* budget) {
    std::vector<std::string> all = exact;
    all.push_back(absl::StrCat("train.steps_max=", steps));
    all.push_back(absl::StrCat("train.hot_rows.rows=", budget));
    return all;
  };
  const TrainingRun whole = Run("cuda:0", sets(20, "500"));
  ASSERT_EQ(whole.status, 0) << whole.err;
  const TrainingRun begun = Run("cuda:0", sets(10, "1000000"));
  ASSERT_EQ(begun.status, 0) << begun.err;
  const TrainingRun ended = Run("cuda:0", sets(20, "0"), {"--resume", begun.summary["checkpoint"].get<std::string>()});
  ASSERT_EQ(ended.status, 0) << ended.err;
  EXPECT_EQ(ended.losses, std::vector<double>(whole.losses.begin() + 10, whole.losses.end()));
}

const std::vector<std::string> kGoldenSets = {"train.epochs=20", "checkpoint.at_end=true"};

INSTANTIATE_TEST_SUITE_P(
    All, GpuJobs,
    ::testing::Values(JobCase{"Dlrm", "tests/golden/dlrm.textproto", "tests/golden", kGoldenSets, 100, "dlrm.tsv"},
                      JobCase{"Dcnv2", "tests/golden/dcnv2.textproto", "tests/golden", kGoldenSets, 100, "dcnv2.tsv"},
                      JobCase{"Movielens", "deploy/jobs/movielens.textproto", "../shared/data", {}, 20, ""}),
    [](const ::testing::TestParamInfo<JobCase>& info) { return info.param.name; });

class GpuErrors : public OnGpu<> {};

TEST_F(GpuErrors, ABatchThatDoesNotFitIsRefusedWithTheBytesAskedForAndFree) {
  const TrainingRun run = Train({.job = "tests/golden/dlrm.textproto",
                                 .flags = {"--device", "cuda:0"},
                                 .sets = {"train.batch_size=16777216", "model.dlrm.top[0]=65536"},
                                 .coordinator = "",
                                 .data_root = absl::StrCat(SPARROW_SOURCE_DIR, "/tests/golden")});
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("cuda:0: the GPU is out of memory: "));
  EXPECT_THAT(run.err, HasSubstr(" are free"));
}

TEST_F(GpuErrors, HoweverFullTheGpuAJobRunsOrSaysWhatItNeeds) {
  int ran = 0, refused = 0, at_start = 0;
  for (const size_t leave_mib : {64u, 400u, 550u, 700u, 1000u, 1200u, 1500u}) {
    const GpuHog hog(leave_mib << 20);
    const TrainingRun run = Train({.job = "tests/golden/dlrm.textproto",
                                   .flags = {"--device", "cuda:0"},
                                   .sets = {"train.steps_max=20", "train.batch_size=64"},
                                   .coordinator = "",
                                   .data_root = absl::StrCat(SPARROW_SOURCE_DIR, "/tests/golden")});
    SCOPED_TRACE(absl::StrCat(leave_mib, " MiB free"));
    std::printf("%zu MiB free: status %d, %s\n", leave_mib, run.status, run.err.substr(0, run.err.find('\n')).c_str());
    if (run.status == 0) {
      ++ran;
      continue;
    }
    EXPECT_EQ(run.status, 1) << run.err;  // A program that has died has another.
    EXPECT_THAT(run.err, AnyOf(HasSubstr("cuda:0: the GPU is out of memory: "),
                               HasSubstr("cuda:0 cannot be used: out of memory; a process needs some ")));
    EXPECT_THAT(run.err, HasSubstr(" are free"));
    at_start += run.err.find("cannot be used") != std::string::npos ? 1 : 0;
    ++refused;
  }
  EXPECT_GE(ran, 1);
  EXPECT_GE(at_start, 1);
  EXPECT_GT(refused, at_start);
}

TEST_F(GpuErrors, AWorkerWhoseGpuWasFullTakesTheNextJob) {
  const std::string data_root = absl::StrCat(SPARROW_SOURCE_DIR, "/tests/golden");
  LocalCluster cluster({.data_root = data_root, .device = "cuda:0"});
  const auto submit = [&] {
    return Train({.job = "tests/golden/dlrm.textproto",
                  .flags = {},
                  .sets = {"train.steps_max=20"},
                  .coordinator = cluster.coordinator(),
                  .data_root = ""});
  };
  {
    const GpuHog hog(size_t{64} << 20);
    const TrainingRun refused = submit();
    EXPECT_EQ(refused.status, 1) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("cuda:0"));
    EXPECT_THAT(refused.err, HasSubstr("out of memory"));
    EXPECT_THAT(refused.err, HasSubstr(" are free"));
  }
  const TrainingRun run = submit();
  EXPECT_EQ(run.status, 0) << run.err;
}

TEST_F(GpuErrors, AGpuThatIsNotThereIsRefused) {
  const TrainingRun run = Train({.job = "tests/golden/dlrm.textproto",
                                 .flags = {"--device", "cuda:99"},
                                 .sets = {},
                                 .coordinator = "",
                                 .data_root = absl::StrCat(SPARROW_SOURCE_DIR, "/tests/golden")});
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("--device=cuda:99: this machine has "));
}

}  // namespace
}  // namespace sparrow
