// Workers with GPUs that hold rows (train.hot_rows): several of them hold one set together, where each has a GPU of its
// own in that one's memory, else in the CPU's, and train, evaluate and save what they do without, to the last bit. What
// a lone worker's GPU has no room for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dense/device_collective.h"
#include "tests/support/gpu.h"
#include "tests/worker/forwarding_trainer.h"
#include "tests/worker/hot_rows_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

// Notes the logits of all evaluations.
class NotingTrainer final : public ForwardingTrainer {
 public:
  NotingTrainer(std::unique_ptr<BatchTrainer> inner, std::vector<float>* logits)
      : ForwardingTrainer(std::move(inner)), logits_(*logits) {}

  absl::StatusOr<std::span<const float>> Forward(const PreparedBatch& prepared) override {
    const absl::StatusOr<std::span<const float>> logits = ForwardingTrainer::Forward(prepared);
    if (logits.ok()) logits_.insert(logits_.end(), logits->begin(), logits->end());
    return logits;
  }

 private:
  std::vector<float>& logits_;
};

class GpuHotRows : public OnGpu<HotRowsTest> {
 protected:
  static constexpr uint32_t kEvalRows = 64;  // Of a batch of ClickJob's evaluations.

  // Two workers evaluate rows of the same words: each half of a batch is like the other. So their logits are equal if
  // their rows and parameters are.
  void SetUp() override {
    OnGpu<HotRowsTest>::SetUp();
    if (IsSkipped()) return;
    const std::string half = harness_.data_root() + "/half.tsv";
    WriteClicks(half, kEvalRows / 2, kClickSeed + 2);
    const absl::StatusOr<std::string> rows = ReadFile(half);
    ASSERT_TRUE(rows.ok()) << rows.status();
    std::ofstream(harness_.data_root() + "/test.tsv") << *rows << *rows << *rows << *rows;
  }

  static v1::Job Job(v1::TrainConfig::Precision precision, const std::string& budget) {
    v1::Job job = HotRowsTest::Job(budget);
    job.mutable_train()->set_epochs(4);
    job.mutable_train()->set_precision(precision);
    job.mutable_train()->set_deterministic(true);
    if (precision == v1::TrainConfig::FLOAT16) job.mutable_train()->mutable_loss_scale()->set_initial(1 << 24);
    return job;
  }

  void ExpectTheBitsOfAJobWithout(const std::vector<Device>& devices) {
    ASSERT_EQ(devices.size(), 2u);
    for (const auto precision : {v1::TrainConfig::FULL, v1::TrainConfig::BFLOAT16, v1::TrainConfig::FLOAT16}) {
      const auto expected = harness_.Train(Job(precision, ""), {.workers = 2, .servers = 2, .devices = devices});
      for (const char* budget : {"rows: 0", kSome, kEverything}) {
        SCOPED_TRACE(absl::StrCat(v1::TrainConfig::Precision_Name(precision), ", ", budget));
        std::vector<float> logits[2];
        const double hits = harness_.worker_metrics().hot_row_hits.Value();
        const auto run = harness_.Train(Job(precision, budget),
                                        {.workers = 2,
                                         .servers = 2,
                                         .devices = devices,
                                         .wrap_trainer = [&](uint32_t rank, std::unique_ptr<BatchTrainer> trainer) {
                                           return std::make_unique<NotingTrainer>(std::move(trainer), &logits[rank]);
                                         }});
        ExpectEqual(run, expected);
        EXPECT_EQ(run.summary().steps_skipped(), expected.summary().steps_skipped());
        if (precision == v1::TrainConfig::FLOAT16) {
          EXPECT_GE(run.summary().steps_skipped(), 1u);
        }
        EXPECT_GE(logits[0].size(), kEvalRows);
        if (devices[0].gpu.has_value()) {  // Without a GPU, a worker adds in another order.
          EXPECT_EQ(logits[0], logits[1]);
        }
        if (budget != std::string("rows: 0")) {
          EXPECT_GT(harness_.worker_metrics().hot_row_hits.Value(), hits);
        }
      }
    }
  }
};

TEST_F(GpuHotRows, OfTwoWorkersWithAGpuEachChangeNoBit) {
  if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two were compiled but not run";
  if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  ExpectTheBitsOfAJobWithout({Device{.gpu = 0}, Device{.gpu = 1}});
  // GPUs have summed in every step of every run, and exchanged rows' gradients: but for two steps at the end of a run,
  // and steps that were skipped.
  EXPECT_EQ(harness_.worker_metrics().exposed_allreduce_seconds.Count(), 3u * 4 * 2 * 4 * 11);
  EXPECT_GE(harness_.worker_metrics().exposed_hot_row_seconds.Count(), 2u * 2 * 2 * (4 * 11 - 2));
}

class GpuHotRowsOptimizer : public GpuHotRows, public ::testing::WithParamInterface<const char*> {};

TEST_P(GpuHotRowsOptimizer, OfTwoWorkersWithAGpuEachChangeNoBit) {
  if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two were compiled but not run";
  if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  for (const bool prefetch : {true, false}) {
    const auto run = [&](const std::string& budget) {
      v1::Job job = HotRowsTest::Job(budget, GetParam());
      job.mutable_train()->set_precision(v1::TrainConfig::FULL);
      job.mutable_train()->set_deterministic(true);
      job.mutable_train()->set_prefetch(prefetch);
      return harness_.Train(job, {.workers = 2, .servers = 2, .devices = {Device{.gpu = 0}, Device{.gpu = 1}}});
    };
    const auto expected = run("");
    for (const char* budget : {kSome, kEverything}) {
      SCOPED_TRACE(absl::StrCat(budget, prefetch ? "" : ", no prefetch"));
      ExpectEqual(run(budget), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuHotRowsOptimizer,
                         ::testing::Values("sgd {}", "momentum {}", "adagrad {}", "rowwise_adagrad {}", "adam {}",
                                           "rowwise_adam {}", "ftrl {}", "rmsprop {}"));

// A last batch of one row leaves one worker without any.
TEST_F(GpuHotRows, OfTwoGpusThatComeAndGoChangeNoBit) {
  if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two were compiled but not run";
  if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  WriteShiftingClicks();
  v1::Job job = ShiftingJob();
  job.mutable_train()->set_precision(v1::TrainConfig::FULL);
  job.mutable_train()->set_deterministic(true);
  const TrainingHarness::Run run = {.workers = 2, .servers = 2, .devices = {Device{.gpu = 0}, Device{.gpu = 1}}};
  const auto expected = harness_.Train(job, run);
  *job.mutable_train()->mutable_hot_rows() = HotRowsTest::Job(kSome).train().hot_rows();
  const WorkerMetrics& metrics = harness_.worker_metrics();
  ExpectEqual(harness_.Train(job, run), expected);
  const double promoted = metrics.hot_rows_promoted.Value();
  const double evicted = metrics.hot_row_evictions.Value();
  EXPECT_GT(promoted, 128.0 * 2) << "more than have room";
  EXPECT_GT(evicted, 20.0 * 2);
  // Which rows are held is the same wherever they lie.
  ASSERT_TRUE(harness_.Train(job, {.workers = 2, .servers = 2}).status().ok());
  EXPECT_EQ(metrics.hot_rows_promoted.Value(), 2 * promoted);
  EXPECT_EQ(metrics.hot_row_evictions.Value(), 2 * evicted);
}

TEST_F(GpuHotRows, OfTwoGpusGiveTheLossesOfOne) {
  if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two were compiled but not run";
  if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  const v1::Job job = Job(v1::TrainConfig::FULL, kEverything);
  const auto expected = harness_.Train(job, {.devices = {Device{.gpu = 0}}});
  const auto actual = harness_.Train(job, {.workers = 2, .devices = {Device{.gpu = 0}, Device{.gpu = 1}}});
  ASSERT_TRUE(expected.status().ok()) << expected.status();
  ASSERT_TRUE(actual.status().ok()) << actual.status();
  ASSERT_EQ(actual.recorder.losses.size(), expected.recorder.losses.size());
  for (size_t i = 0; i < expected.recorder.losses.size(); ++i) {
    const double loss = expected.recorder.losses[i].loss();
    EXPECT_NEAR(actual.recorder.losses[i].loss(), loss, 1e-4 * loss) << "step " << i;
  }
}

TEST_F(GpuHotRows, OfTwoGpusWhoseTrainingDivergesEndTheJob) {
  if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two were compiled but not run";
  if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  v1::Job job = HotRowsTest::Job(kEverything, "sgd {}");
  job.mutable_train()->set_precision(v1::TrainConfig::FULL);
  for (v1::TableConfig& table : *job.mutable_tables()) table.mutable_optimizer()->set_learning_rate(1e30);
  const auto result = harness_.Train(job, {.workers = 2, .devices = {Device{.gpu = 0}, Device{.gpu = 1}}});
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
}

TEST_F(GpuHotRows, OfTwoWorkersThatShareAGpuChangeNoBit) {
  ExpectTheBitsOfAJobWithout({Device{.gpu = 0}, Device{.gpu = 0}});
}

TEST_F(GpuHotRows, OfTwoWorkersOfWhichOneHasAGpuChangeNoBit) {
  ExpectTheBitsOfAJobWithout({Device{}, Device{.gpu = 0}});
}

// A bag may have any length. There is room for 64 ids of a sample on the average, and for a small batch for 65,536.
TEST_F(GpuHotRows, OfMoreRowsThanABatchHasRoomForEndTheJobAndNotTheProcess) {
  const auto write = [&](int ids) {
    std::string bag;
    for (int i = 0; i < ids; ++i) absl::StrAppend(&bag, i == 0 ? "" : ",", i);
    std::ofstream(harness_.data_root() + "/train.tsv") << "1\t1\t1\t1\t" << bag << "\t1\n";
  };
  const auto run = [&] {
    v1::Job job = ClickJob();
    job.mutable_data()->clear_test();
    job.clear_eval();
    job.mutable_train()->mutable_hot_rows()->set_rows(1000);
    return harness_.Train(job, {.devices = {Device{.gpu = 0}}});
  };
  write(65'000);
  EXPECT_TRUE(run().status().ok());
  write(70'000);
  const absl::Status refused = run().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("a batch reads 70000 different rows of dimension 4, with train.hot_rows on a GPU 65536 at most"));
  write(65'000);
  EXPECT_TRUE(run().status().ok());
}

}  // namespace
}  // namespace sparrow
