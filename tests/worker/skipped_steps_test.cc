// train.precision FLOAT16: a step whose gradients overflow on one worker changes nothing anywhere. The overflows are
// made up here, in front of the trainers of CPUs, so that they come where a test wants them.

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "dense/safetensors.h"
#include "proto/manifest.h"
#include "server/row_file.h"
#include "tests/worker/forwarding_trainer.h"
#include "tests/worker/training_harness.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 43;
constexpr uint64_t kSteps = 11;  // Of an epoch.

// Whether the gradients of a rank overflow in a step with that loss scale.
using Overflows = std::function<bool(uint32_t rank, uint64_t step, float scale)>;

// Says so, with row gradients that no server would take, and fails the test where they are used.
class OverflowingTrainer final : public ForwardingTrainer {
 public:
  OverflowingTrainer(uint32_t rank, Overflows overflows, std::unique_ptr<BatchTrainer> trainer)
      : ForwardingTrainer(std::move(trainer)), rank_(rank), overflows_(std::move(overflows)) {}

  absl::Status Start(const PreparedBatch& prepared, double learning_rate_factor) override {
    step_ = prepared.batch.step;
    return ForwardingTrainer::Start(prepared, learning_rate_factor);
  }
  absl::StatusOr<Result> Finish() override {
    absl::StatusOr<Result> result = ForwardingTrainer::Finish();
    if (!result.ok() || !overflows_(rank_, step_, scale_)) return result;
    result->overflowed = true;
    bad_.clear();
    for (const std::span<const float> rows : result->row_gradients) {
      bad_.emplace_back(rows.size(), std::numeric_limits<float>::infinity());
    }
    spans_.assign(bad_.begin(), bad_.end());
    result->row_gradients = spans_;
    return result;
  }
  void SetLossScale(float scale) override { scale_ = scale; }
  absl::Status Reduce(Collective* collective, Sums* sums) override {
    const absl::Status status = ForwardingTrainer::Reduce(collective, sums);
    any_ = sums->overflows > 0;
    return status;
  }
  absl::Status UpdateDense(uint64_t samples, double learning_rate_factor) override {
    EXPECT_FALSE(any_) << "rank " << rank_;
    return ForwardingTrainer::UpdateDense(samples, learning_rate_factor);
  }

 private:
  const uint32_t rank_;
  const Overflows overflows_;
  uint64_t step_ = 0;
  float scale_ = 0;
  bool any_ = false;
  std::vector<std::vector<float>> bad_;
  std::vector<std::span<const float>> spans_;
};

class SkippedSteps : public ::testing::Test {
 protected:
  SkippedSteps() {
    WriteClicks(harness_.data_root() + "/train.tsv", 32 * (kSteps - 1) + 7, kSeed);
    WriteClicks(harness_.data_root() + "/test.tsv", 200, kSeed + 1);
  }

  static v1::Job Job(const std::string& loss_scale = "") {
    v1::Job job = ClickJob();
    job.mutable_checkpoint()->set_at_end(true);
    job.mutable_train()->set_precision(v1::TrainConfig::FLOAT16);
    job.mutable_train()->set_clip_norm(0.5);
    if (!loss_scale.empty()) {
      CHECK(google::protobuf::TextFormat::ParseFromString(loss_scale, job.mutable_train()->mutable_loss_scale()));
    }
    return job;
  }

  TrainingHarness::Result Run(const v1::Job& job, TrainingHarness::Run run, const Overflows& overflows) {
    run.wrap_trainer = [&](uint32_t rank, std::unique_ptr<BatchTrainer> trainer) {
      return std::make_unique<OverflowingTrainer>(rank, overflows, std::move(trainer));
    };
    return harness_.Train(job, run);
  }
  static Overflows Never() {
    return [](uint32_t, uint64_t, float) { return false; };
  }
  // On one rank alone.
  static Overflows At(uint32_t rank, std::set<uint64_t> steps) {
    return [=](uint32_t r, uint64_t step, float) { return r == rank && steps.contains(step); };
  }

  // Records by table and key, of all servers' files.
  static std::map<std::pair<std::string, Key>, std::string> Rows(const std::string& checkpoint) {
    std::map<std::pair<std::string, Key>, std::string> rows;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
      if (entry.path().extension() != ".rows") continue;
      auto reader = RowFileReader::Open(entry.path().string());
      CHECK(reader.ok()) << reader.status();
      Key key = 0;
      absl::string_view record;
      for (;;) {
        const auto more = (*reader)->Next(&key, &record);
        CHECK(more.ok()) << more.status();
        if (!*more) break;
        rows[{(*reader)->header().table, key}] = std::string(record);
      }
    }
    return rows;
  }
  static LoadedSafetensors Dense(const std::string& checkpoint) {
    auto loaded = ReadSafetensors(checkpoint + "/" + kDenseFileName);
    CHECK(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }
  static void ExpectEqualDense(const std::string& a, const std::string& b) {
    const LoadedSafetensors first = Dense(a), second = Dense(b);
    ASSERT_EQ(first.tensors.size(), second.tensors.size());
    for (const auto& [name, tensor] : first.tensors) EXPECT_EQ(tensor.values, second.tensors.at(name).values) << name;
    EXPECT_EQ(first.metadata.at("updates"), second.metadata.at("updates"));
  }
  // All rows of `some` are in `all`, bit for bit; returns how many more there are.
  static size_t ExpectRowsAmong(const std::string& some, const std::string& all) {
    const auto few = Rows(some), many = Rows(all);
    for (const auto& [name, record] : few) {
      const auto found = many.find(name);
      EXPECT_TRUE(found != many.end() && found->second == record) << name.first << " " << name.second;
    }
    return many.size() - few.size();
  }
  static std::vector<double> Losses(const TrainingHarness::Result& result, uint64_t from = 0) {
    std::vector<double> losses;
    for (const v1::LossPoint& point : result.recorder.losses) {
      if (point.step() >= from) losses.push_back(point.loss());
    }
    return losses;
  }

  TrainingHarness harness_;
};

TEST_F(SkippedSteps, WithoutOverflowNothingDiffersFromAPrecisionThatIsNotScaled) {
  for (const uint32_t workers : {1u, 3u}) {
    const TrainingHarness::Run run{.workers = workers, .servers = 2};
    const auto scaled = Run(Job(), run, Never());
    v1::Job job = Job();
    job.mutable_train()->set_precision(v1::TrainConfig::BFLOAT16);
    const auto plain = Run(job, run, Never());
    ASSERT_TRUE(scaled.status().ok()) << scaled.status();
    EXPECT_EQ(Losses(scaled), Losses(plain));
    ExpectEqualDense(scaled.summary().checkpoint(), plain.summary().checkpoint());
    EXPECT_EQ(Rows(scaled.summary().checkpoint()), Rows(plain.summary().checkpoint()));
    EXPECT_FALSE(Dense(plain.summary().checkpoint()).metadata.contains("loss_scale"));
  }
}

TEST_F(SkippedSteps, AnOverflowOnOneWorkerChangesNothingOnAnyWorkerOrServer) {
  const TrainingHarness::Run run{.workers = 3, .servers = 2};
  v1::Job job = Job();
  job.mutable_train()->set_steps_max(4);
  const auto before = Run(job, run, Never());
  ASSERT_TRUE(before.status().ok()) << before.status();
  job.mutable_train()->set_steps_max(5);
  const auto skipped = Run(job, run, At(1, {4}));
  ASSERT_TRUE(skipped.status().ok()) << skipped.status();
  const std::string cut = before.summary().checkpoint(), after = skipped.summary().checkpoint();
  ExpectEqualDense(cut, after);
  ExpectRowsAmong(cut, after);  // More may have come to be with the pull.
  EXPECT_EQ(skipped.summary().steps(), 5u);
  EXPECT_EQ(skipped.summary().steps_skipped(), 1u);
  EXPECT_EQ(skipped.summary().rows_trained(), 5u * 32);
  EXPECT_EQ(Dense(cut).metadata.at("loss_scale"), "65536");
  EXPECT_EQ(Dense(cut).metadata.at("loss_scale_good_steps"), "4");
  EXPECT_EQ(Dense(after).metadata.at("loss_scale"), "32768");
  EXPECT_EQ(Dense(after).metadata.at("loss_scale_good_steps"), "0");

  // The whole run, against one that never had the step: it goes on from the checkpoint with the data of a step later.
  job.mutable_train()->clear_steps_max();
  const auto whole = Run(job, run, At(2, {4}));
  auto manifest = ReadManifest(cut);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  manifest->set_step(5);
  manifest->set_rows_in_epoch(5 * 32);
  ASSERT_TRUE(WriteManifest(cut, *manifest).ok());
  const auto dropped = Run(job, {.workers = 3, .servers = 2, .restore_from = cut, .job_id = "job-2"}, Never());
  ASSERT_TRUE(whole.status().ok()) << whole.status();
  ASSERT_TRUE(dropped.status().ok()) << dropped.status();
  EXPECT_EQ(Losses(dropped).size(), kSteps - 5);
  EXPECT_EQ(Losses(whole, 5), Losses(dropped));
  ExpectEqualDense(whole.summary().checkpoint(), dropped.summary().checkpoint());
  ExpectRowsAmong(dropped.summary().checkpoint(), whole.summary().checkpoint());
}

TEST_F(SkippedSteps, AreSkippedWithoutPrefetchAndInARow) {
  const TrainingHarness::Run run{.workers = 2, .servers = 3};
  const auto overflows = [](uint32_t rank, uint64_t step, float) {
    return (rank == 0 && step == 3) || (rank == 1 && step == 4) || step == 5 || (rank == 1 && step == kSteps - 1);
  };
  const auto ahead = Run(Job(), run, overflows);
  v1::Job job = Job();
  job.mutable_train()->set_prefetch(false);
  const auto late = Run(job, run, overflows);
  ASSERT_TRUE(ahead.status().ok()) << ahead.status();
  ASSERT_TRUE(late.status().ok()) << late.status();
  EXPECT_EQ(Losses(ahead), Losses(late));
  EXPECT_EQ(Rows(ahead.summary().checkpoint()), Rows(late.summary().checkpoint()));
  for (const auto& rank : late.ranks) EXPECT_EQ(rank->steps_skipped(), 4u);
  EXPECT_EQ(late.recorder.last_progress.steps_skipped(), 4u);
  EXPECT_EQ(Dense(late.summary().checkpoint()).metadata.at("loss_scale"), "4096");
}

TEST_F(SkippedSteps, RowsThatTheWorkerHoldsStayAsTheyAreToo) {
  const auto files = [&](uint32_t workers, const std::string& budget) {
    v1::Job job = Job();
    job.mutable_eval()->set_every_steps(4);
    if (!budget.empty()) {
      CHECK(google::protobuf::TextFormat::ParseFromString(budget, job.mutable_train()->mutable_hot_rows()));
    }
    const auto result = Run(job, {.workers = workers, .servers = 2}, At(workers - 1, {0, 3, 4, kSteps - 1}));
    CHECK(result.status().ok()) << result.status();
    EXPECT_EQ(result.summary().steps_skipped(), 4u);
    return std::pair(Rows(result.summary().checkpoint()), Losses(result));
  };
  for (const uint32_t workers : {1u, 3u}) {
    const auto servers = files(workers, "");
    for (const char* budget : {"bytes: 1000000", "rows: 7", "rows: 0"}) {
      EXPECT_EQ(files(workers, budget), servers) << workers << " workers, " << budget;
    }
  }
}

TEST_F(SkippedSteps, TheScaleIsSearchedForAndGrowsAgain) {
  std::mutex mu;
  std::vector<float> scales;  // Of rank 1.
  v1::Job job = Job("initial: 1024 growth_steps: 3");
  const auto result = Run(job, {.workers = 2}, [&](uint32_t rank, uint64_t, float scale) {
    if (rank == 0) return false;
    const std::lock_guard lock(mu);
    scales.push_back(scale);
    return scale > 256;
  });
  ASSERT_TRUE(result.status().ok()) << result.status();
  EXPECT_THAT(scales, testing::ElementsAre(1024, 512, 256, 256, 256, 512, 256, 256, 256, 512, 256));
  for (const auto& rank : result.ranks) EXPECT_EQ(rank->steps_skipped(), 4u);
  EXPECT_EQ(harness_.worker_metrics().steps_skipped.Value(), 2 * 4);
  EXPECT_EQ(harness_.worker_metrics().steps.Value(), 2 * kSteps);
  EXPECT_THAT(harness_.metrics().Text(), HasSubstr("\nsparrow_worker_loss_scale 256"));
}

TEST_F(SkippedSteps, TheLossScaleIsServedOnlyWhereOneIsUsed) {
  v1::Job job = Job();
  job.mutable_train()->set_precision(v1::TrainConfig::BFLOAT16);
  ASSERT_TRUE(Run(job, {}, Never()).status().ok());
  EXPECT_THAT(harness_.metrics().Text(), testing::Not(HasSubstr("sparrow_worker_loss_scale ")));
  EXPECT_EQ(harness_.worker_metrics().steps_skipped.Value(), 0);
}

TEST_F(SkippedSteps, AnOverflowWithTheSmallestScaleEndsTheJobOnEveryWorker) {
  const auto result = Run(Job("initial: 4 min: 2"), {.workers = 3}, At(2, {1, 4}));
  for (const auto& rank : result.ranks) {
    EXPECT_EQ(rank.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(rank.status().message(),
              "step 4: gradients are not finite, though the loss scale is 2, the smallest (train.loss_scale.min): "
              "training has diverged or float16 has not the range; lower the learning rates, or set train.precision to "
              "BFLOAT16");
  }
  EXPECT_EQ(result.recorder.losses.size(), 4u);
}

TEST_F(SkippedSteps, ALossThatIsNotFiniteEndsTheJobAsInOtherPrecisions) {
  v1::Job job = Job();
  job.mutable_train()->clear_clip_norm();
  job.mutable_train()->mutable_optimizer()->set_learning_rate(1e30);
  const auto result = Run(job, {}, Never());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("the loss is "));
}

TEST_F(SkippedSteps, ACheckpointHoldsWhereTheScaleStands) {
  const std::string scale = "initial: 1024 growth_steps: 4";
  const Overflows overflows = At(0, {2, 8});
  v1::Job job = Job(scale);
  const auto whole = Run(job, {}, overflows);
  ASSERT_TRUE(whole.status().ok()) << whole.status();
  for (const uint64_t cut : {2, 3, 5, 9}) {
    v1::Job first = job;
    first.mutable_train()->set_steps_max(cut);
    const auto begun = Run(first, {}, overflows);
    const auto ended = Run(job, {.restore_from = begun.summary().checkpoint(), .job_id = "job-2"}, overflows);
    ASSERT_TRUE(ended.status().ok()) << ended.status();
    EXPECT_EQ(Losses(ended), Losses(whole, cut));
    EXPECT_EQ(*ReadFile(ended.summary().checkpoint() + "/" + kDenseFileName),
              *ReadFile(whole.summary().checkpoint() + "/" + kDenseFileName))
        << "cut at " << cut;
    EXPECT_EQ(ended.summary().steps_skipped() + begun.summary().steps_skipped(), 2u);
  }
}

TEST_F(SkippedSteps, ACheckpointOfAnotherPrecisionIsResumedWithTheInitialScale) {
  v1::Job plain = Job();
  plain.mutable_train()->set_precision(v1::TrainConfig::FULL);
  plain.mutable_train()->set_steps_max(3);
  const auto begun = Run(plain, {}, Never());
  v1::Job scaled = Job("initial: 512");
  scaled.mutable_train()->set_steps_max(5);
  const auto ended = Run(scaled, {.restore_from = begun.summary().checkpoint()}, Never());
  ASSERT_TRUE(ended.status().ok()) << ended.status();
  EXPECT_EQ(Dense(ended.summary().checkpoint()).metadata.at("loss_scale"), "512");
  EXPECT_EQ(Dense(ended.summary().checkpoint()).metadata.at("loss_scale_good_steps"), "2");
  plain.mutable_train()->set_steps_max(6);
  const auto back = Run(plain, {.restore_from = ended.summary().checkpoint()}, Never());
  EXPECT_TRUE(back.status().ok()) << back.status();
}

}  // namespace
}  // namespace sparrow
