// Whole runs of a small language model: on one worker and on several, resumed, stopped, and refused.

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/random.h"
#include "tests/worker/training_harness.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kVocabulary = 13;

// Of rank 1: says at its fourth gathering that it has other weights.
class LyingCollective final : public Collective {
 public:
  explicit LyingCollective(std::unique_ptr<Collective> to) : to_(std::move(to)) {}

  uint32_t rank() const override { return to_->rank(); }
  uint32_t size() const override { return to_->size(); }
  absl::Status AllReduceSum(std::span<float> values) override { return to_->AllReduceSum(values); }
  absl::Status AllReduceSum(std::span<double> values) override { return to_->AllReduceSum(values); }
  absl::Status ReduceScatterSum(std::span<float> values, const SliceEnds& ends) override {
    return to_->ReduceScatterSum(values, ends);
  }
  absl::Status AllGatherSlices(std::span<float> values, const SliceEnds& ends) override {
    return to_->AllGatherSlices(values, ends);
  }
  uint64_t slice_bytes_sent() const override { return to_->slice_bytes_sent(); }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override {
    return to_->AllGather(rank() == 1 && ++gatherings_ == 4 ? "0" : bytes);
  }
  absl::Status Barrier() override { return to_->Barrier(); }

 private:
  const std::unique_ptr<Collective> to_;
  int gatherings_ = 0;
};

class LanguageTraining : public ::testing::Test {
 protected:
  LanguageTraining() { WriteTokens("text.bin", 8 * 101 + 1, kVocabulary); }

  // A walk around a circle by one or two, so that half of each token is known from the one before.
  void WriteTokens(const std::string& name, size_t n, uint32_t vocabulary) {
    std::ofstream file(harness_.data_root() + "/" + name, std::ios::binary);
    uint16_t at = 0;
    for (size_t i = 0; i < n; ++i) {
      file.write(reinterpret_cast<const char*>(&at), sizeof(at));
      at = static_cast<uint16_t>((at + 1 + RandomBits(3, i) % 2) % vocabulary);
    }
  }

  static v1::Job Job(const std::string& more = "") {
    v1::Job job;
    const std::string text = R"(
        name: "walk"
        data {
          train { path: "text.bin" }
          test { path: "text.bin" rows { skip_share: 0.8 } }
          tokens {}
        }
        model { gpt2 { layers: 2 heads: 2 width: 16 context: 8 vocabulary: 13 dropout: 0.1 } }
        train {
          batch_size: 7
          epochs: 2
          optimizer { learning_rate: 0.01 adamw { weight_decay: 0.1 } }
          schedule { warmup_steps: 4 cosine { decay_steps: 30 end_factor: 0.1 } }
          clip_norm: 1
          loss_every_steps: 1
        }
        eval { every_steps: 1 batch_size: 20 })";
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job));
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(more, &job)) << more;
    return job;
  }

  std::string Refusal(const v1::Job& job, const TrainingHarness::Run& run = {}) {
    const auto result = harness_.Train(job, run);
    EXPECT_FALSE(result.status().ok());
    EXPECT_TRUE(result.recorder.losses.empty()) << "refused before the first step";
    return std::string(result.status().message());
  }

  static std::string Dense(const TrainingHarness::Result& result) {
    const auto bytes = ReadFile(result.summary().checkpoint() + "/" + kDenseFileName);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or("");
  }

  TrainingHarness harness_;
};

TEST_F(LanguageTraining, LearnsWhatCanBeLearnt) {
  const auto result = harness_.Train(Job(), {});
  ASSERT_TRUE(result.status().ok()) << result.status();
  const v1::Summary& summary = result.summary();
  EXPECT_TRUE(summary.rows_are_tokens());
  EXPECT_EQ(summary.servers(), 0u);
  // Two epochs of 101 windows or, from a later offset, 100; 15 steps each, the last of 3 windows or of 2.
  EXPECT_EQ(summary.steps(), 30u);
  EXPECT_GE(summary.rows_trained(), 8u * 200);
  EXPECT_LE(summary.rows_trained(), 8u * 202);
  EXPECT_EQ(summary.rows_skipped(), 0u);
  ASSERT_EQ(result.recorder.losses.size(), 30u);
  EXPECT_NEAR(result.recorder.losses[0].loss(), std::log(13.0), 0.3);
  EXPECT_LT(result.recorder.losses.back().loss(), 1.5);  // ln 2 is the best that there is.
  ASSERT_EQ(result.recorder.evals.size(), 30u);
  EXPECT_LT(result.recorder.evals.back().loss(), 1.5);
  EXPECT_EQ(result.recorder.evals.back().rows(), 160u);  // 20 windows of the last 162 tokens.
  EXPECT_TRUE(result.recorder.last_progress.has_gradient_norm());
}

// The masks of dropout, too, are those of one worker with the whole batch. That all weights are equal after each step
// is what the run itself checks at each evaluation.
TEST_F(LanguageTraining, SeveralWorkersTrainWhatOneTrains) {
  const auto alone = harness_.Train(Job(), {});
  ASSERT_TRUE(alone.status().ok()) << alone.status();
  for (const uint32_t workers : {2u, 3u, 4u}) {
    for (const char* more : {"", "train { micro_batch_size: 1 }", "train { recompute: BLOCKS }"}) {
      const auto several = harness_.Train(Job(more), {.workers = workers});
      ASSERT_TRUE(several.status().ok()) << several.status();
      ASSERT_EQ(several.recorder.losses.size(), alone.recorder.losses.size());
      for (size_t i = 0; i < alone.recorder.losses.size(); ++i) {
        const double expected = alone.recorder.losses[i].loss();
        EXPECT_NEAR(several.recorder.losses[i].loss(), expected, 1e-5 * expected) << workers << " workers, step " << i;
      }
      const double expected = alone.recorder.evals.back().loss();
      EXPECT_NEAR(several.recorder.evals.back().loss(), expected, 1e-5 * expected);
      EXPECT_EQ(several.recorder.evals.back().rows(), alone.recorder.evals.back().rows());
    }
  }
}

TEST_F(LanguageTraining, ResumedInMidEpochEqualsUninterruptedBitForBit) {
  const auto whole = harness_.Train(Job(), {});
  ASSERT_TRUE(whole.status().ok()) << whole.status();
  for (const uint64_t steps : {1, 9, 15, 22}) {
    v1::Job first = Job();
    first.mutable_train()->set_steps_max(steps);
    const auto begun = harness_.Train(first, {});
    ASSERT_TRUE(begun.status().ok()) << begun.status();
    const auto resumed = harness_.Train(Job(), {.restore_from = begun.summary().checkpoint()});
    ASSERT_TRUE(resumed.status().ok()) << resumed.status();
    EXPECT_EQ(resumed.summary().steps(), 30u);
    EXPECT_EQ(Dense(resumed), Dense(whole)) << "resumed after " << steps << " steps";
    ASSERT_EQ(resumed.recorder.losses.size(), 30 - steps);
    EXPECT_EQ(resumed.recorder.losses.back().loss(), whole.recorder.losses.back().loss());
  }
}

TEST_F(LanguageTraining, OnlyEvaluatesWithoutEpochs) {
  const auto trained = harness_.Train(Job(), {});
  ASSERT_TRUE(trained.status().ok()) << trained.status();
  const auto evaluated = harness_.Train(Job("train { epochs: 0 }"), {.restore_from = trained.summary().checkpoint()});
  ASSERT_TRUE(evaluated.status().ok()) << evaluated.status();
  ASSERT_EQ(evaluated.recorder.evals.size(), 1u);
  EXPECT_EQ(evaluated.recorder.evals[0].loss(), trained.recorder.evals.back().loss());
  EXPECT_EQ(evaluated.summary().checkpoint(), trained.summary().checkpoint());
}

TEST_F(LanguageTraining, DivergedTrainingFailsAndSavesNothing) {
  const auto result =
      harness_.Train(Job("train { optimizer { learning_rate: 1e30 } schedule { warmup_steps: 0 } }"), {});
  ASSERT_FALSE(result.status().ok());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("training has diverged; lower the learning rate"));
  EXPECT_FALSE(std::filesystem::exists(harness_.checkpoint_root() + "/walk-job-1"));
}

// No step comes behind it that would find its loss not finite.
TEST_F(LanguageTraining, DivergedInTheLastStepFailsAndSavesNothing) {
  const char* const one_step = "train { steps_max: 1 optimizer { learning_rate: 1e30 } schedule { warmup_steps: 0 } } ";
  const auto evaluated = harness_.Train(Job(one_step), {.workers = 2});
  EXPECT_THAT(std::string(evaluated.status().message()),
              HasSubstr("after 1 steps the validation loss is nan: training has diverged"));
  v1::Job job = Job(one_step);
  job.mutable_data()->clear_test();
  job.mutable_eval()->clear_every_steps();
  job.mutable_train()->mutable_optimizer()->set_learning_rate(1e39);
  const auto alone = harness_.Train(job, {});
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("inf: training has diverged"));
  EXPECT_FALSE(std::filesystem::exists(harness_.checkpoint_root() + "/walk-job-1"));
}

// A worker that has loaded something else, or drifted.
TEST_F(LanguageTraining, WorkersWithOtherWeightsAreNamed) {
  const auto result =
      harness_.Train(Job(), {.workers = 2, .wrap_collective = [](std::unique_ptr<Collective> collective) {
                               return std::make_unique<LyingCollective>(std::move(collective));
                             }});
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("after 3 steps worker 1 has other weights than worker 0"));
}

TEST_F(LanguageTraining, WhatDoesNotFitIsRefusedAtTheStart) {
  EXPECT_THAT(Refusal(Job("model { gpt2 { vocabulary: 12 } }")), HasSubstr("12"));
  EXPECT_THAT(Refusal(Job("train { batch_size: 102 }")), HasSubstr("101"));
  EXPECT_THAT(Refusal(Job("model { gpt2 { context: 900 } }")), HasSubstr("809"));
  EXPECT_THAT(Refusal(Job("data { test { path: \"none.bin\" } }")), HasSubstr("none.bin"));
  EXPECT_THAT(Refusal(Job(), {.workers = 8}), HasSubstr("8"));
  EXPECT_THAT(Refusal(Job("tables { name: \"t\" }")), HasSubstr("tables"));
}

// Of the job, by its figures; the worker goes on.
TEST_F(LanguageTraining, WhatNoMachineHasTheMemoryForIsRefused) {
  EXPECT_THAT(Refusal(Job("model { gpt2 { layers: 1024 width: 65536 } }")),
              AllOf(HasSubstr("model.gpt2 of 52777432055808 parameters needs "), HasSubstr("a smaller model")));
  const char* const batch = "model { gpt2 { width: 64 } } train { batch_size: 16777216 }";
  EXPECT_THAT(Refusal(Job(batch)), HasSubstr("activations of 16777216 windows of 8 tokens"));
  // In parts it would fit; then that the data are too short is found.
  EXPECT_THAT(Refusal(Job(absl::StrCat(batch, "train { micro_batch_size: 1 }"))), HasSubstr("101 windows of 8"));
}

TEST_F(LanguageTraining, WithoutAnEndItTrainsUntilItIsStopped) {
  v1::Job job = Job("train { epochs: 4294967295 }");
  StopSignal stop;
  const auto result = harness_.Train(job, {.on_progress = [&](const v1::Progress&) { stop.Stop(); }, .stop = &stop});
  EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
  EXPECT_EQ(result.recorder.last_progress.step(), 1u);
  EXPECT_EQ(result.recorder.last_progress.steps_total(), 0u) << "not known";
}

TEST_F(LanguageTraining, AnotherOrderOfTokensIsNotResumed) {
  v1::Job first = Job();
  first.mutable_train()->set_steps_max(1);
  const auto begun = harness_.Train(first, {});
  ASSERT_TRUE(begun.status().ok()) << begun.status();
  EXPECT_THAT(Refusal(Job("data { tokens { shuffle: false } }"), {.restore_from = begun.summary().checkpoint()}),
              HasSubstr("data.tokens.shuffle is true in the checkpoint and false in the job"));
}

TEST_F(LanguageTraining, AnotherModelsCheckpointIsRefusedByName) {
  v1::Job first = Job();
  first.mutable_train()->set_steps_max(1);
  const auto begun = harness_.Train(first, {});
  ASSERT_TRUE(begun.status().ok()) << begun.status();
  EXPECT_THAT(Refusal(Job("model { gpt2 { layers: 3 } }"), {.restore_from = begun.summary().checkpoint()}),
              HasSubstr("model.gpt2.layers is 2 in the checkpoint and 3 in the job"));
}

}  // namespace
}  // namespace sparrow
