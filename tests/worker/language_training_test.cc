// Whole runs of a small language model: on one worker and on several, resumed, stopped, and refused.

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/random.h"
#include "dense/safetensors.h"
#include "tests/worker/training_harness.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kVocabulary = 13;

class LyingCollective final : public Collective {
 public:
  // Worker 1 says `says` in gathering number `when`, from 1.
  LyingCollective(std::unique_ptr<Collective> to, int when, std::string says)
      : to_(std::move(to)), when_(when), says_(std::move(says)) {}

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
    return to_->AllGather(rank() == 1 && ++gatherings_ == when_ ? says_ : bytes);
  }
  absl::Status Barrier() override { return to_->Barrier(); }

 private:
  const std::unique_ptr<Collective> to_;
  const int when_;
  const std::string says_;
  int gatherings_ = 0;
};

class LanguageTraining : public ::testing::Test {
 protected:
  LanguageTraining() { WriteTokens("text.bin", 8 * 101 + 1, kVocabulary); }

  void WriteTokens(const std::string& name, size_t n, uint32_t vocabulary) {
    WriteWalk(harness_.data_root() + "/" + name, n, vocabulary);
  }

  static v1::Job Job(const std::string& more = "") {
    v1::Job job = WalkJob();
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString("eval { every_steps: 1 batch_size: 20 }", &job));
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(more, &job)) << more;
    return job;
  }

  std::string Refusal(const v1::Job& job, const TrainingHarness::Run& run = {}) {
    const auto result = harness_.Train(job, run);
    EXPECT_FALSE(result.status().ok());
    EXPECT_TRUE(result.recorder.losses.empty()) << "refused before the first step";
    return std::string(result.status().message());
  }

  // Of two workers, worker 1 says `says` in gathering number `when`, from 1.
  TrainingHarness::Result TrainWithALie(const v1::Job& job, int when, const std::string& says) {
    return harness_.Train(job, {.workers = 2, .wrap_collective = [&](std::unique_ptr<Collective> collective) {
                                  return std::make_unique<LyingCollective>(std::move(collective), when, says);
                                }});
  }

  static std::string Dense(const TrainingHarness::Result& result) {
    const auto bytes = ReadFile(result.summary().checkpoint() + "/" + kDenseFileName);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or("");
  }

  double SliceBytes() const { return harness_.worker_metrics().slice_bytes.Value(); }
  double ModelBytes(const char* part) const { return harness_.worker_metrics().ModelBytes(part).Value(); }

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
  for (const char* part : {"load", "forward", "backward", "allreduce", "optimizer"}) {
    EXPECT_GT(summary.step_seconds().at(part), 0) << part;
    EXPECT_GT(result.recorder.last_progress.step_seconds().at(part), 0) << part;
  }
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

// Parameters of Job(): 6,928, which neither 3 nor the other cuts of its tensors divide.
constexpr double kParameters = 6928;

// Where each worker holds a slice of the optimizer's state, or of the gradients too, nothing else changes: not a bit,
// and not a byte between workers.
TEST_F(LanguageTraining, ZeroChangesNoBitAndNoByte) {
  for (const uint32_t workers : {1u, 2u, 3u, 4u}) {
    std::string expected;
    for (const char* zero : {"NONE", "OPTIMIZER_STATE", "GRADIENTS"}) {
      const double sent = SliceBytes();
      const auto result =
          harness_.Train(Job(absl::StrCat("train { zero: ", zero, " steps_max: 12 } ")), {.workers = workers});
      ASSERT_TRUE(result.status().ok()) << result.status();
      EXPECT_EQ(SliceBytes() - sent, 12 * 2 * (workers - 1) * kParameters * 4) << zero << ", " << workers;
      if (expected.empty()) expected = Dense(result);
      EXPECT_TRUE(Dense(result) == expected) << zero << ", " << workers << " workers";
    }
  }
}

// With several micro batches sums of slices come before sums of micro batches: the same within rounding, and gradients
// travel once for each.
TEST_F(LanguageTraining, ZeroWithMicroBatchesTrainsTheSameWithinRounding) {
  const char* const more = "train { micro_batch_size: 1 steps_max: 12 } ";
  const auto expected = harness_.Train(Job(more), {.workers = 3});
  ASSERT_TRUE(expected.status().ok()) << expected.status();
  const auto state = harness_.Train(Job(absl::StrCat(more, "train { zero: OPTIMIZER_STATE }")), {.workers = 3});
  ASSERT_TRUE(state.status().ok()) << state.status();
  EXPECT_TRUE(Dense(state) == Dense(expected));
  const double sent = SliceBytes();
  const auto gradients = harness_.Train(Job(absl::StrCat(more, "train { zero: GRADIENTS }")), {.workers = 3});
  ASSERT_TRUE(gradients.status().ok()) << gradients.status();
  // Of 7 windows one worker has 3, so all reduce three times.
  EXPECT_EQ(SliceBytes() - sent, 12 * (3 + 1) * 2 * kParameters * 4);
  for (size_t i = 0; i < expected.recorder.losses.size(); ++i) {
    EXPECT_NEAR(gradients.recorder.losses[i].loss(), expected.recorder.losses[i].loss(), 1e-5) << i;
  }
}

TEST_F(LanguageTraining, ZeroWithLambTrainsTheSameWithinRounding) {
  const char* const lamb = "train { optimizer { learning_rate: 0.1 lamb { weight_decay: 0.1 } } } ";
  const auto expected = harness_.Train(Job(lamb), {.workers = 3});
  ASSERT_TRUE(expected.status().ok()) << expected.status();
  for (const char* zero : {"OPTIMIZER_STATE", "GRADIENTS"}) {
    const auto result = harness_.Train(Job(absl::StrCat(lamb, "train { zero: ", zero, " }")), {.workers = 3});
    ASSERT_TRUE(result.status().ok()) << result.status();
    for (size_t i = 0; i < expected.recorder.losses.size(); ++i) {
      EXPECT_NEAR(result.recorder.losses[i].loss(), expected.recorder.losses[i].loss(), 1e-6) << zero << " " << i;
    }
  }
  EXPECT_LT(expected.recorder.losses.back().loss(), expected.recorder.losses.front().loss() - 0.03);
}

// Checkpoints know nothing of slices.
TEST_F(LanguageTraining, ZeroResumesWithAnySettingOnAnyNumberOfWorkers) {
  for (const char* optimizer : {"adamw { weight_decay: 0.1 }", "lamb { weight_decay: 0.1 }"}) {
    const std::string kind = absl::StrCat("train { optimizer { ", optimizer, " } } ");
    const auto whole = harness_.Train(Job(kind), {.workers = 3});
    ASSERT_TRUE(whole.status().ok()) << whole.status();
    for (const char* first : {"NONE", "OPTIMIZER_STATE", "GRADIENTS"}) {
      const auto begun =
          harness_.Train(Job(absl::StrCat(kind, "train { steps_max: 9 zero: ", first, " }")), {.workers = 3});
      ASSERT_TRUE(begun.status().ok()) << begun.status();
      for (const char* second : {"NONE", "OPTIMIZER_STATE", "GRADIENTS"}) {
        const v1::Job job = Job(absl::StrCat(kind, "train { zero: ", second, " }"));
        for (const uint32_t workers : {1u, 3u, 4u}) {
          const auto resumed = harness_.Train(job, {.workers = workers, .restore_from = begun.summary().checkpoint()});
          ASSERT_TRUE(resumed.status().ok()) << resumed.status();
          EXPECT_NEAR(resumed.recorder.losses.back().loss(), whole.recorder.losses.back().loss(), 2e-5)
              << first << ", then " << second << " on " << workers;
          if (workers == 3 && job.train().optimizer().has_adamw()) {
            EXPECT_TRUE(Dense(resumed) == Dense(whole)) << first << ", then " << second;
          }
        }
      }
    }
  }
}

TEST_F(LanguageTraining, ModelBytesAreServedByPart) {
  ASSERT_TRUE(harness_.Train(Job("train { zero: OPTIMIZER_STATE steps_max: 1 }"), {.workers = 2}).status().ok());
  EXPECT_EQ(ModelBytes("weights"), 4 * kParameters);
  EXPECT_EQ(ModelBytes("gradients"), 4 * kParameters);
  EXPECT_EQ(ModelBytes("optimizer"), 8 * kParameters / 2);
  EXPECT_GT(ModelBytes("activations"), 0);
}

// Forty steps of windows in file order, of which `spikes` go around the circle the other way.
class LossSpikes : public LanguageTraining {
 protected:
  static constexpr int kStepTokens = 7 * 8;

  void WriteSpiked(const std::set<int>& spikes) {
    std::ofstream file(harness_.data_root() + "/spiked.bin", std::ios::binary);
    uint16_t at = 0;
    for (int i = 0; i < 40 * kStepTokens + 1; ++i) {
      file.write(reinterpret_cast<const char*>(&at), sizeof(at));
      const uint64_t by = 1 + RandomBits(3, i) % 2;
      at = static_cast<uint16_t>((at + (spikes.contains(i / kStepTokens) ? kVocabulary - by : by)) % kVocabulary);
    }
  }

  static v1::Job Spiked(const std::string& more = "") {
    v1::Job job = Job(absl::StrCat(R"(data { train { path: "spiked.bin" } tokens { shuffle: false } }
                       train { loss_spike { window: 10 loss_factor: 1.4 norm_factor: 100 } } )",
                                   more));
    job.mutable_data()->mutable_train()->mutable_path()->DeleteSubrange(0, 1);
    job.mutable_train()->set_epochs(1);
    job.mutable_eval()->set_every_steps(0);
    return job;
  }

  double Spikes() const { return harness_.worker_metrics().loss_spikes.Value(); }

  // Parameters and optimizer state.
  static std::map<std::string, std::vector<float>> Tensors(const TrainingHarness::Result& result) {
    std::map<std::string, std::vector<float>> tensors;
    EXPECT_TRUE(result.status().ok()) << result.status();
    const auto loaded = ReadSafetensors(result.summary().checkpoint() + "/" + kDenseFileName);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    for (const auto& [name, tensor] : loaded->tensors) tensors[name] = tensor.values;
    return tensors;
  }
};

TEST_F(LossSpikes, ASpikeIsSkippedOnAllWorkersAndChangesNothing) {
  WriteSpiked({30});
  for (const uint32_t workers : {1u, 3u}) {
    const double before = Spikes();
    const auto until = harness_.Train(Spiked("train { steps_max: 30 }"), {.workers = workers});
    ASSERT_TRUE(until.status().ok()) << until.status();
    EXPECT_EQ(until.summary().steps_skipped(), 0u);
    EXPECT_EQ(Spikes(), before);
    const auto with = harness_.Train(Spiked("train { steps_max: 31 }"), {.workers = workers});
    ASSERT_TRUE(with.status().ok()) << with.status();
    EXPECT_EQ(with.summary().steps(), 31u);
    EXPECT_EQ(with.summary().steps_skipped(), 1u);
    EXPECT_EQ(Spikes(), before + workers) << "each worker's";
    EXPECT_EQ(Tensors(with), Tensors(until));
    EXPECT_GT(with.recorder.losses[30].loss(), 1.4 * with.recorder.losses[29].loss());
    // Without the guard it is applied.
    v1::Job unguarded = Spiked("train { steps_max: 31 }");
    unguarded.mutable_train()->clear_loss_spike();
    EXPECT_NE(Tensors(harness_.Train(unguarded, {.workers = workers})), Tensors(until));
  }
}

TEST_F(LossSpikes, AJobWithoutSpikesTrainsAsWithoutTheGuard) {
  WriteSpiked({});
  v1::Job unguarded = Spiked();
  unguarded.mutable_train()->clear_loss_spike();
  EXPECT_EQ(Tensors(harness_.Train(Spiked(), {})), Tensors(harness_.Train(unguarded, {})));
}

TEST_F(LossSpikes, StopEndsTheJobNamingStepLossMedianAndWindows) {
  WriteSpiked({30});
  const auto result = harness_.Train(Spiked("train { loss_spike { action: STOP } }"), {.workers = 2});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("step 30, windows 210 to 216 in the order of epoch 0 of data.train: the loss is "),
                    HasSubstr(", more than 1.4 times "), HasSubstr("the median of the last 10 steps")));
  EXPECT_EQ(result.recorder.losses.size(), 30u);
  EXPECT_FALSE(std::filesystem::exists(harness_.checkpoint_root() + "/walk-job-1"));
}

TEST_F(LossSpikes, MoreInARowThanMayBeSkippedEndTheJob) {
  WriteSpiked({20, 22, 23, 26, 27, 28});
  const auto result = harness_.Train(Spiked("train { loss_spike { skips_max: 2 } }"), {});
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("step 28, windows 196 to 202"), HasSubstr("skips_max is 2")));
  EXPECT_EQ(Spikes(), 6);
}

// What it has seen is in the checkpoint: before the window is full, between, and in the midst of spikes.
TEST_F(LossSpikes, ResumedEqualsUninterruptedBitForBit) {
  WriteSpiked({20, 21, 30});
  const auto whole = harness_.Train(Spiked(), {});
  ASSERT_TRUE(whole.status().ok()) << whole.status();
  EXPECT_EQ(whole.summary().steps_skipped(), 3u);
  for (const uint64_t steps : {4, 15, 21, 29}) {
    v1::Job first = Spiked();
    first.mutable_train()->set_steps_max(steps);
    const auto begun = harness_.Train(first, {});
    ASSERT_TRUE(begun.status().ok()) << begun.status();
    const auto resumed = harness_.Train(Spiked(), {.restore_from = begun.summary().checkpoint()});
    ASSERT_TRUE(resumed.status().ok()) << resumed.status();
    EXPECT_TRUE(Dense(resumed) == Dense(whole)) << "resumed after " << steps << " steps";
    EXPECT_EQ(resumed.summary().steps_skipped() + begun.summary().steps_skipped(), 3u);
  }
}

TEST_F(LanguageTraining, StartsFromWeightsOfAFile) {
  const auto trained = harness_.Train(Job(), {});
  ASSERT_TRUE(trained.status().ok()) << trained.status();
  std::filesystem::copy(trained.summary().checkpoint() + "/" + kDenseFileName, harness_.data_root() + "/w.safetensors");
  const char* const from = "train { init_from: \"w.safetensors\" } ";
  const auto evaluated = harness_.Train(Job(absl::StrCat(from, "train { epochs: 0 }")), {.workers = 2});
  ASSERT_TRUE(evaluated.status().ok()) << evaluated.status();
  EXPECT_NEAR(evaluated.recorder.evals.at(0).loss(), trained.recorder.evals.back().loss(), 1e-6);
  const auto tuned = harness_.Train(Job(from), {});
  ASSERT_TRUE(tuned.status().ok()) << tuned.status();
  EXPECT_EQ(tuned.summary().steps(), 30u) << "weights alone: no step was done before";
  EXPECT_LT(tuned.recorder.losses[0].loss(), 1.5);
  // A checkpoint comes before it.
  const auto resumed = harness_.Train(Job("train { epochs: 0 init_from: \"none.safetensors\" }"),
                                      {.restore_from = trained.summary().checkpoint()});
  EXPECT_TRUE(resumed.status().ok()) << resumed.status();

  EXPECT_THAT(Refusal(Job(absl::StrCat(from, "model { gpt2 { layers: 3 } }"))),
              AllOf(HasSubstr("train.init_from"), HasSubstr("w.safetensors"), HasSubstr("\"h.2.")));
  EXPECT_THAT(Refusal(Job("train { init_from: \"none.safetensors\" }")), HasSubstr("none.safetensors"));
  EXPECT_THAT(Refusal(Job("train { init_from: \"../w.safetensors\" }")), HasSubstr("outside"));
  ASSERT_EQ(mkfifo((harness_.data_root() + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(Refusal(Job("train { init_from: \"pipe\" }")),
              AllOf(HasSubstr("train.init_from"), HasSubstr("/pipe"), HasSubstr("is not a regular file")));
}

// What the last evaluation cannot read does not cost the training.
TEST_F(LanguageTraining, ATestSetThatIsGoneAtTheEndCostsTheEvaluationAlone) {
  WriteTokens("test.bin", 200, kVocabulary);
  v1::Job job = Job("eval { every_steps: 0 }");
  job.mutable_data()->mutable_test()->clear_rows();
  job.mutable_data()->mutable_test()->set_path(0, "test.bin");
  const auto whole = harness_.Train(job, {});
  ASSERT_TRUE(whole.status().ok()) << whole.status();
  for (const uint32_t workers : {1u, 2u}) {
    WriteTokens("test.bin", 200, kVocabulary);
    const auto lose = [&](const v1::Progress& progress) {
      if (progress.step() == 30) std::filesystem::resize_file(harness_.data_root() + "/test.bin", 5);
    };
    const auto result =
        harness_.Train(job, {.workers = workers, .job_id = absl::StrCat("lost-", workers), .on_progress = lose});
    const std::string message(result.ranks[0].status().message());
    EXPECT_THAT(message, AllOf(HasSubstr("evaluation at the end"), HasSubstr("test.bin"),
                               HasSubstr("; the trained model is saved, in ")));
    const std::string directory = message.substr(message.rfind(' ') + 1);
    const auto dense = ReadFile(absl::StrCat(directory, "/", kDenseFileName));
    ASSERT_TRUE(dense.ok()) << dense.status();
    EXPECT_TRUE(workers == 2 || *dense == Dense(whole));
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
  const auto result = TrainWithALie(Job(), 6, "0");
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("after 3 steps worker 1 has other weights than worker 0"));
}

// Between evaluations too, where the job says so.
TEST_F(LanguageTraining, WorkersWithOtherWeightsAreNamedAfterTheStepsThatTheJobNames) {
  const char* const more = "train { check_weights_every_steps: 2 } eval { every_steps: 0 }";
  int gatherings = 0;
  const auto lie_at = [&](int when) { return TrainWithALie(Job(more), when, "0"); };
  // Files, devices, and the weights at the start come first.
  for (const int steps : {2, 4, 30}) {
    gatherings = 3 + steps / 2;
    EXPECT_THAT(std::string(lie_at(gatherings).status().message()),
                HasSubstr(absl::StrCat("after ", steps, " steps worker 1 has other weights than worker 0")));
  }
  // The evaluation and the end follow, and nothing else.
  EXPECT_THAT(std::string(lie_at(gatherings + 2).status().message()), HasSubstr("after the last step worker 1 has"));
  EXPECT_TRUE(lie_at(gatherings + 3).status().ok());
}

TEST_F(LanguageTraining, WorkersOnOtherDevicesAreNamed) {
  const auto result = TrainWithALie(Job(), 2, "a GPU");
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("worker 1 computes on a GPU, and worker 0 on a CPU"));
}

TEST_F(LanguageTraining, WorkersWithOtherFilesAreNamed) {
  const auto result = TrainWithALie(Job(), 1, "2 files of 7 bytes");
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("worker 1 reads 2 files of 7 bytes, but worker 0 reads 1 file of"));
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
