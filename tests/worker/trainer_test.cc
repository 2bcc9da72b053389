#include "worker/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/worker/training_harness.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 11;

class Trainer : public ::testing::Test {
 protected:
  void WriteData(int train_rows, int test_rows) {
    WriteClicks(harness_.data_root() + "/train.tsv", train_rows, kSeed);
    WriteClicks(harness_.data_root() + "/test.tsv", test_rows, kSeed + 1);
  }

  TrainingHarness harness_;
};

class SameLosses : public Trainer, public ::testing::WithParamInterface<std::pair<uint32_t, uint32_t>> {};

// fp32 sums in another order, through Adagrad's square roots: the bound.
constexpr double kLossTolerance = 1e-4;

TEST_P(SameLosses, AsOneWorkerAndOneServerOver200Steps) {
  WriteData(6400, 500);
  const auto one = harness_.Train(ClickJob(), {});
  ASSERT_TRUE(one.status().ok()) << one.status();
  ASSERT_EQ(one.recorder.losses.size(), 200u);
  const auto [workers, servers] = GetParam();
  const auto many = harness_.Train(ClickJob(), {.workers = workers, .servers = servers});
  ASSERT_TRUE(many.status().ok()) << many.status();
  ASSERT_EQ(many.recorder.losses.size(), 200u);
  for (size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(many.recorder.losses[i].step(), i);
    ASSERT_NEAR(many.recorder.losses[i].loss(), one.recorder.losses[i].loss(),
                kLossTolerance * one.recorder.losses[i].loss())
        << "step " << i;
  }
  EXPECT_EQ(many.summary().rows_trained(), 6400u);
  EXPECT_EQ(many.summary().eval().rows(), 500u);
  EXPECT_NEAR(many.summary().eval().auc(), one.summary().eval().auc(), 1e-4);
  EXPECT_NEAR(many.summary().eval().loss(), one.summary().eval().loss(), 1e-4);
  EXPECT_LT(one.summary().eval().loss(), 0.69);  // It learns.
}

INSTANTIATE_TEST_SUITE_P(WorkersAndServers, SameLosses,
                         ::testing::Values(std::pair(1u, 3u), std::pair(2u, 1u), std::pair(2u, 3u), std::pair(4u, 1u),
                                           std::pair(4u, 3u)));

TEST_F(Trainer, FiveRowsInBatchesOfTwoOnTwoWorkersAreAllTrainedAndAllEvaluated) {
  WriteData(5, 5);
  v1::Job job = ClickJob();
  job.mutable_train()->set_batch_size(2);
  job.mutable_eval()->set_batch_size(2);
  const auto result = harness_.Train(job, {.workers = 2});
  ASSERT_TRUE(result.status().ok()) << result.status();
  EXPECT_EQ(result.summary().steps(), 3u);
  EXPECT_EQ(result.summary().rows_trained(), 5u);
  EXPECT_EQ(result.summary().eval().rows(), 5u);
}

TEST_F(Trainer, MoreWorkersThanRowsLeaveSomeWithoutAnyRow) {
  WriteData(2, 1);
  const auto result = harness_.Train(ClickJob(), {.workers = 4, .servers = 3});
  ASSERT_TRUE(result.status().ok()) << result.status();
  EXPECT_EQ(result.summary().rows_trained(), 2u);
  EXPECT_EQ(result.summary().eval().rows(), 1u);
}

TEST_F(Trainer, ABatchLargerThanTheFileIsOneShortBatch) {
  WriteData(10000, 100);
  v1::Job job = ClickJob();
  job.mutable_train()->set_batch_size(1000000);
  const auto result = harness_.Train(job, {.workers = 2});
  ASSERT_TRUE(result.status().ok()) << result.status();
  EXPECT_EQ(result.summary().steps(), 1u);
  EXPECT_EQ(result.summary().rows_trained(), 10000u);
}

TEST_F(Trainer, LossPointsAreThoseOfStepZeroAndOfEveryNthStep) {
  WriteData(32 * 11, 10);
  v1::Job job = ClickJob();
  job.mutable_train()->set_loss_every_steps(4);
  const auto result = harness_.Train(job, {});
  ASSERT_TRUE(result.status().ok()) << result.status();
  std::vector<uint64_t> steps;
  for (const v1::LossPoint& point : result.recorder.losses) steps.push_back(point.step());
  EXPECT_THAT(steps, ::testing::ElementsAre(0, 3, 7));
}

TEST_F(Trainer, EvaluationEveryNStepsLeavesTrainingAndTablesUnchanged) {
  WriteData(32 * 12, 300);
  v1::Job quiet = ClickJob();
  quiet.mutable_data()->clear_test();
  const auto without = harness_.Train(quiet, {.servers = 2});
  ASSERT_TRUE(without.status().ok()) << without.status();
  v1::Job job = ClickJob();
  job.mutable_eval()->set_every_steps(3);
  const auto with = harness_.Train(job, {.servers = 2});
  ASSERT_TRUE(with.status().ok()) << with.status();
  EXPECT_EQ(with.recorder.evals.size(), 4u);  // After 3, 6, 9 and 12 steps; the last one is not done twice.
  ASSERT_EQ(with.recorder.losses.size(), without.recorder.losses.size());
  for (size_t i = 0; i < with.recorder.losses.size(); ++i) {
    EXPECT_EQ(with.recorder.losses[i].loss(), without.recorder.losses[i].loss()) << i;
  }
  EXPECT_EQ(with.rows, without.rows);
  EXPECT_FALSE(without.summary().has_eval());
}

TEST_F(Trainer, ATestSetOfOneClassHasALoglossAndAReasonInsteadOfAnAuc) {
  WriteData(64, 10);
  std::ofstream(harness_.data_root() + "/test.tsv") << "0\t1\t2\t3\t4,5\t6\n0\t1\t2\t3\t\t6\n";
  const auto result = harness_.Train(ClickJob(), {.workers = 2});
  ASSERT_TRUE(result.status().ok()) << result.status();
  EXPECT_FALSE(result.summary().eval().has_auc());
  EXPECT_THAT(result.summary().eval().auc_reason(), HasSubstr("one class"));
  EXPECT_GT(result.summary().eval().loss(), 0);
}

TEST_F(Trainer, AStopEndsARunInTheMiddleWithinASecond) {
  WriteData(20000, 10);
  v1::Job job = ClickJob();
  job.mutable_train()->set_epochs(1000);
  StopSignal stop;
  std::atomic<bool> running{false};
  std::atomic<int64_t> stopped_at{0};
  std::thread stopper([&] {
    while (!running) absl::SleepFor(absl::Milliseconds(1));
    stopped_at = absl::GetCurrentTimeNanos();
    stop.Stop();
  });
  const auto result =
      harness_.Train(job, {.workers = 2,
                           .servers = 2,
                           .on_progress = [&](const v1::Progress& p) { running = running || p.step() > 20; },
                           .stop = &stop});
  const double seconds = static_cast<double>(absl::GetCurrentTimeNanos() - stopped_at) * 1e-9;
  stopper.join();
  for (const auto& rank : result.ranks) EXPECT_EQ(rank.status().code(), absl::StatusCode::kCancelled);
  EXPECT_LT(seconds, 1.0 + 4.0);  // Four more for a machine that does other things.
}

TEST_F(Trainer, AServerThatLeavesIsNamed) {
  WriteData(20000, 10);
  v1::Job job = ClickJob();
  job.mutable_train()->set_epochs(1000);
  const auto result = harness_.Train(job, {.servers = 3,
                                           .on_progress =
                                               [&](const v1::Progress& p) {
                                                 if (p.step() == 20) harness_.shard(1)->Shutdown();
                                               },
                                           .unavailable_timeout = absl::Milliseconds(300)});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("parameter server 1 at shard-1: "));
}

TEST_F(Trainer, AnErrorOfOneWorkerEndsTheOthers) {
  WriteData(3200, 10);
  // Rank 1 has the second half of each batch; its row 90 of the file is broken.
  v1::Job job = ClickJob();
  job.mutable_train()->set_batch_size(100);
  std::ofstream file(harness_.data_root() + "/train.tsv");
  for (int i = 0; i < 400; ++i) file << (i == 90 ? "2" : "1") << "\t1\t2\t3\t4\t5\n";
  file.close();
  const auto result = harness_.Train(job, {.workers = 2});
  EXPECT_THAT(std::string(result.ranks[1].status().message()), HasSubstr("train.tsv:91"));
  EXPECT_FALSE(result.ranks[0].ok());
}

TEST_F(Trainer, ALossThatIsNotFiniteStopsTrainingAndSaysWhen) {
  WriteData(3200, 10);
  v1::Job job = ClickJob();
  job.mutable_train()->mutable_optimizer()->set_learning_rate(1e30);
  const auto result = harness_.Train(job, {});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("step "));
}

// No loss is ever computed of the weights that the last step left.
TEST_F(Trainer, WeightsThatTheLastStepMadeNotFiniteAreSeenAndNotSaved) {
  WriteData(32, 10);  // One step.
  v1::Job job = ClickJob();
  job.mutable_data()->clear_test();
  job.mutable_train()->mutable_optimizer()->set_learning_rate(1e300);
  job.mutable_checkpoint()->set_at_end(true);
  for (const uint32_t workers : {1, 2}) {
    const auto result = harness_.Train(job, {.workers = workers});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("after step 0: weight "));
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("training has diverged"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(harness_.checkpoint_root()));
}

TEST_F(Trainer, AMissingTestFileIsFoundBeforeTraining) {
  WriteData(64, 10);
  v1::Job job = ClickJob();
  job.mutable_data()->mutable_test()->set_path(0, "absent.tsv");
  const auto result = harness_.Train(job, {});
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("data.test"));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("absent.tsv"));
  EXPECT_TRUE(result.recorder.losses.empty());
}

TEST_F(Trainer, WhatItReadsIsToldBeforeTheFirstStepSoThatAFailedJobCanNameIt) {
  WriteData(320, 100);
  std::ofstream(harness_.data_root() + "/train.tsv", std::ios::app) << "no such row\n";
  const auto result = harness_.Train(ClickJob(), {.workers = 2, .servers = 3});
  EXPECT_FALSE(result.status().ok());
  EXPECT_THAT(
      std::vector<std::string>(result.recorder.opened.sources().begin(), result.recorder.opened.sources().end()),
      testing::ElementsAre(harness_.data_root() + "/train.tsv", harness_.data_root() + "/test.tsv"));
  EXPECT_EQ(result.recorder.opened.workers(), 2u);
  EXPECT_EQ(result.recorder.opened.servers(), 3u);
}

TEST_F(Trainer, TheFiguresOfAnEvaluationAreServedOnlyOnceTheyWereMeasured) {
  WriteData(320, 100);
  EXPECT_THAT(harness_.metrics().Text(), testing::Not(HasSubstr("sparrow_worker_eval_auc")));
  EXPECT_THAT(harness_.metrics().Text(), testing::Not(HasSubstr("sparrow_worker_eval_logloss")));
  ASSERT_TRUE(harness_.Train(ClickJob(), {}).status().ok());
  EXPECT_THAT(harness_.metrics().Text(), HasSubstr("\nsparrow_worker_eval_auc 0."));
  EXPECT_THAT(harness_.metrics().Text(), HasSubstr("# HELP sparrow_worker_eval_auc AUC of the last evaluation"));
}

TEST_F(Trainer, OnTheCpuNothingIsCopiedToADevice) {
  WriteData(320, 10);
  const auto result = harness_.Train(ClickJob(), {});
  ASSERT_TRUE(result.status().ok()) << result.status();
  const auto& parts = result.ranks[0]->step_seconds();
  EXPECT_EQ(parts.at("h2d"), 0);
  EXPECT_GT(parts.at("backward"), 0);
  const auto& lately = result.recorder.last_progress.step_seconds();
  EXPECT_FALSE(lately.contains("h2d"));
  EXPECT_GT(lately.at("backward"), 0);
}

TEST_F(Trainer, MetricsCountWhatWasDone) {
  WriteData(320, 100);
  const WorkerMetrics& metrics = harness_.worker_metrics();
  ASSERT_TRUE(harness_.Train(ClickJob(), {}).status().ok());
  EXPECT_EQ(metrics.steps.Value(), 10);
  EXPECT_EQ(metrics.samples.Value(), 320);
  EXPECT_EQ(metrics.rows_read.Value(), 420);
  EXPECT_EQ(metrics.rows_skipped.Value(), 0);
  EXPECT_EQ(metrics.evaluations.Value(), 1);
  EXPECT_GT(metrics.rows_pulled.Value(), metrics.rows_pushed.Value());  // Evaluation pulls too.
  EXPECT_EQ(metrics.push_bytes.Value(), metrics.rows_pushed.Value() * (8 + 4 * 4));
  EXPECT_EQ(metrics.pull_bytes.Value(), metrics.rows_pulled.Value() * (8 + 4 * 4));
  EXPECT_THAT(harness_.metrics().Text(), HasSubstr("\nsparrow_worker_eval_logloss 0."));
  EXPECT_GT(metrics.input_bytes.Value(), 0);
  for (const Histogram& part : metrics.step_seconds) EXPECT_EQ(part.Count(), 10u);
  EXPECT_EQ(metrics.checkpoint_seconds.Count(), 0u);
}

}  // namespace
}  // namespace sparrow
