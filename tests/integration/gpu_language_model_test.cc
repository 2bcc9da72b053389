// Language models on a GPU as a user trains them: the CPU's losses in full precision, equally good models in 16 bits,
// and checkpoints that either device goes on from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/child_process.h"
#include "tests/support/gpu.h"
#include "tests/support/local_cluster.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training_run.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = "deploy/jobs/shakespeare.textproto";

class GpuLanguageModel : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    std::ofstream text(data_.File("text.txt"));
    for (int i = 0; i < 3000; ++i) text << "The " << i * 7919 % 1000 << " sparrows of " << i % 13 << " hedges.\n";
    text.close();
    const RunResult tokenize = RunProgram({ProgramPath("sparrowctl"), "data", "tokenize", "--characters", "--input",
                                           data_.File("text.txt"), "--out", data_.File("shakespeare.bin")});
    ASSERT_EQ(tokenize.status, 0) << tokenize.err;
  }

  TrainingRun Run(const std::string& device, int steps, std::vector<std::string> sets = {},
                  std::vector<std::string> flags = {}, const std::string& coordinator = "") {
    sets.insert(sets.begin(), {absl::StrCat("train.steps_max=", steps), "train.loss_every_steps=1",
                               "model.gpt2.layers=2", "model.gpt2.width=32", "model.gpt2.context=32",
                               "model.gpt2.dropout=0.1", "model.gpt2.vocabulary=64", "train.batch_size=10"});
    if (coordinator.empty()) flags.insert(flags.end(), {"--device", device});
    return Train({.job = kJob,
                  .flags = flags,
                  .sets = sets,
                  .coordinator = coordinator,
                  .data_root = coordinator.empty() ? data_.path() : "",
                  .checkpoint_root = coordinator.empty() ? data_.File("checkpoints") : ""});
  }

  static void ExpectLosses(const TrainingRun& run, const std::vector<double>& expected, size_t first,
                           double tolerance) {
    ASSERT_EQ(run.status, 0) << run.err;
    ASSERT_EQ(run.losses.size() + first, expected.size());
    for (size_t i = 0; i < run.losses.size(); ++i) {
      EXPECT_NEAR(run.losses[i], expected[first + i], tolerance * expected[first + i]) << "step " << first + i;
    }
  }

  const std::vector<std::string> exact_ = {"train.precision=FULL", "train.deterministic=true"};
  TemporaryDirectory data_;
};

TEST_F(GpuLanguageModel, FullPrecisionGivesTheLossesOfTheCpu) {
  const TrainingRun cpu = Run("cpu", 30, {"eval.every_steps=10"});
  ASSERT_EQ(cpu.status, 0) << cpu.err;
  for (const char* micro : {"10", "3"}) {
    std::vector<std::string> sets = exact_;
    sets.insert(sets.end(), {"eval.every_steps=10", absl::StrCat("train.micro_batch_size=", micro)});
    const TrainingRun gpu = Run("cuda:0", 30, sets);
    ExpectLosses(gpu, cpu.losses, 0, 1e-5);
    EXPECT_NEAR(gpu.summary["eval_loss"].get<double>(), cpu.summary["eval_loss"].get<double>(), 3e-5);
    EXPECT_GT(gpu.summary["step_seconds"]["backward"], 0);
    EXPECT_THAT(gpu.out, HasSubstr("tokens/s"));
  }
}

TEST_F(GpuLanguageModel, TwoDeterministicRunsAreEqualBitForBit) {
  for (const char* precision : {"FULL", "BFLOAT16", "FLOAT16"}) {
    const std::vector<std::string> sets = {absl::StrCat("train.precision=", precision), "train.deterministic=true",
                                           "eval.every_steps=7"};
    const TrainingRun first = Run("cuda:0", 30, sets), second = Run("cuda:0", 30, sets);
    ASSERT_EQ(first.status, 0) << first.err;
    EXPECT_EQ(first.losses, second.losses) << precision;
    EXPECT_EQ(first.summary["eval_loss"], second.summary["eval_loss"]) << precision;
    const TrainingRun begun = Run("cuda:0", 15, sets);
    ASSERT_EQ(begun.status, 0) << begun.err;
    const TrainingRun ended = Run("cuda:0", 30, sets, {"--resume", begun.summary["checkpoint"].get<std::string>()});
    ExpectLosses(ended, first.losses, 15, 0);
    EXPECT_EQ(ended.summary["eval_loss"], first.summary["eval_loss"]) << precision;
  }
}

TEST_F(GpuLanguageModel, EachDeviceGoesOnFromWhatTheOtherSaved) {
  const TrainingRun whole = Run("cpu", 20, exact_);
  ASSERT_EQ(whole.status, 0) << whole.err;
  for (const auto& [first, second] : {std::pair("cpu", "cuda:0"), std::pair("cuda:0", "cpu")}) {
    SCOPED_TRACE(::testing::Message() << first << ", then " << second);
    const TrainingRun begun = Run(first, 10, exact_);
    ASSERT_EQ(begun.status, 0) << begun.err;
    ExpectLosses(Run(second, 20, exact_, {"--resume", begun.summary["checkpoint"].get<std::string>()}), whole.losses,
                 10, 1e-5);
  }
}

TEST_F(GpuLanguageModel, SixteenBitsTrainAnEquallyGoodModel) {
  const TrainingRun cpu = Run("cpu", 300);
  ASSERT_EQ(cpu.status, 0) << cpu.err;
  for (const char* precision : {"BFLOAT16", "FLOAT16"}) {
    const TrainingRun gpu = Run("cuda:0", 300, {absl::StrCat("train.precision=", precision)});
    ASSERT_EQ(gpu.status, 0) << gpu.err;
    EXPECT_NEAR(gpu.summary["eval_loss"].get<double>(), cpu.summary["eval_loss"].get<double>(), 0.02) << precision;
  }
}

TEST_F(GpuLanguageModel, TwoWorkersOnOneGpuTrainWhatOneTrains) {
  const TrainingRun alone = Run("cuda:0", 20, exact_);
  ASSERT_EQ(alone.status, 0) << alone.err;
  LocalCluster cluster({.servers = 0, .workers = 2, .data_root = data_.path(), .device = "cuda:0"});
  ExpectLosses(Run("", 20, exact_, {}, cluster.coordinator()), alone.losses, 0, 1e-5);
}

TEST_F(GpuLanguageModel, WhatAGpuDoesNotTakeIsRefusedBeforeTheFirstStep) {
  const TrainingRun odd = Run("cuda:0", 5, {"model.gpt2.width=36", "model.gpt2.heads=4"});
  EXPECT_NE(odd.status, 0);
  EXPECT_THAT(odd.err, HasSubstr("model.gpt2.width"));
}

}  // namespace
}  // namespace sparrow
