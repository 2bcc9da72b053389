// Several workers with GPUs, against the same job on CPUs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

#include "base/cuda/stream.h"
#include "dense/device_collective.h"
#include "tests/support/gpu.h"
#include "tests/support/gpu_hog.h"
#include "tests/worker/training_harness.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

class GpuWorkers : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu<>::SetUp();
    if (IsSkipped()) return;
    WriteClicks(harness_.data_root() + "/train.tsv", 1'000, 1);
    WriteClicks(harness_.data_root() + "/test.tsv", 200, 2);
    job_ = ClickJob();
    job_.mutable_train()->set_precision(v1::TrainConfig::FULL);
    job_.mutable_train()->set_epochs(2);
  }

  void ExpectTheLossesOfCpus(const std::vector<Device>& devices) {
    const uint32_t workers = static_cast<uint32_t>(devices.size());
    const auto expected = harness_.Train(job_, {.workers = workers});
    ASSERT_TRUE(expected.status().ok()) << expected.status();
    ASSERT_EQ(harness_.worker_metrics().exposed_allreduce_seconds.Count(), 0u);
    const auto actual = harness_.Train(job_, {.workers = workers, .devices = devices});
    ASSERT_TRUE(actual.status().ok()) << actual.status();
    ASSERT_EQ(actual.recorder.losses.size(), expected.recorder.losses.size());
    for (size_t i = 0; i < expected.recorder.losses.size(); ++i) {
      const double loss = expected.recorder.losses[i].loss();
      EXPECT_NEAR(actual.recorder.losses[i].loss(), loss, 1e-4 * loss) << "step " << i;
    }
    EXPECT_NEAR(actual.summary().eval().loss(), expected.summary().eval().loss(), 1e-3);
  }

  // In float16, with a scale that overflows at first, of which each rank hears.
  void ExpectSkippedSteps(const std::vector<Device>& devices) {
    const uint32_t workers = static_cast<uint32_t>(devices.size());
    job_.mutable_train()->set_precision(v1::TrainConfig::FLOAT16);
    job_.mutable_train()->set_deterministic(true);
    job_.mutable_train()->mutable_loss_scale()->set_initial(1 << 24);
    job_.mutable_train()->mutable_loss_scale()->set_growth_steps(16);
    const auto alone = harness_.Train(job_, {.devices = {Device{.gpu = 0}}});
    ASSERT_TRUE(alone.status().ok()) << alone.status();
    const uint64_t skipped = alone.summary().steps_skipped();
    EXPECT_GE(skipped, 4u);
    const auto together = harness_.Train(job_, {.workers = workers, .devices = devices});
    ASSERT_TRUE(together.status().ok()) << together.status();
    for (const auto& rank : together.ranks) {
      EXPECT_EQ(rank->steps(), 2u * 32);
      // A worker without a GPU never overflows, and rounding decides some steps.
      EXPECT_NEAR(static_cast<double>(rank->steps_skipped()), static_cast<double>(skipped), 3);
      EXPECT_EQ(rank->steps_skipped(), together.summary().steps_skipped());
    }
    EXPECT_NEAR(together.recorder.losses[0].loss(), alone.recorder.losses[0].loss(), 1e-3);
    EXPECT_NEAR(together.summary().eval().loss(), alone.summary().eval().loss(), 0.02);
  }

  TrainingHarness harness_;
  v1::Job job_;
};

TEST_F(GpuWorkers, SkipStepsTogetherThroughTheHost) { ExpectSkippedSteps({Device{.gpu = 0}, Device{.gpu = 0}}); }

TEST_F(GpuWorkers, SkipStepsTogetherWithOneThatHasNoGpu) {
  ExpectSkippedSteps({Device{}, Device{.gpu = 0}});
  ExpectSkippedSteps({Device{.gpu = 0}, Device{}, Device{}});
}

TEST_F(GpuWorkers, SkipStepsTogetherBetweenTheGpus) {
  if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two were compiled but not run";
  if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  ExpectSkippedSteps({Device{.gpu = 0}, Device{.gpu = 1}});
  EXPECT_EQ(harness_.worker_metrics().exposed_allreduce_seconds.Count(), 2u * 2 * 32);
}

TEST_F(GpuWorkers, ThatShareAGpuSumThroughTheHost) {
  ExpectTheLossesOfCpus({Device{.gpu = 0}, Device{.gpu = 0}});
  EXPECT_EQ(harness_.worker_metrics().exposed_allreduce_seconds.Count(), 0u);
}

TEST_F(GpuWorkers, OneOfThemWithoutAGpuSumThroughTheHost) {
  ExpectTheLossesOfCpus({Device{}, Device{.gpu = 0}});
  EXPECT_EQ(harness_.worker_metrics().exposed_allreduce_seconds.Count(), 0u);
}

TEST_F(GpuWorkers, AFullGpuEndsTheJobAndNotTheProcess) {
  UseGpu(0);
  GpuMemoryNow();  // This process has its context.
  for (const bool hot_rows : {false, true}) {
    if (hot_rows) job_.mutable_train()->mutable_hot_rows()->set_rows(1000);
    {
      const GpuHog hog(size_t{400} << 20);
      const auto refused = harness_.Train(job_, {.devices = {Device{.gpu = 0}}});
      EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
      EXPECT_THAT(std::string(refused.status().message()),
                  HasSubstr("cuda:0: the GPU is out of memory: others leave too little: kernels, recorded steps and "
                            "evaluation need 536870912 bytes, "));
      EXPECT_THAT(std::string(refused.status().message()), HasSubstr(" are free"));
      const auto on_cpu = harness_.Train(job_, {});
      EXPECT_TRUE(on_cpu.status().ok()) << on_cpu.status();
    }
    const auto again = harness_.Train(job_, {.devices = {Device{.gpu = 0}}});
    EXPECT_TRUE(again.status().ok()) << again.status();
  }
}

TEST_F(GpuWorkers, MemoryThatOthersTakeWhileAJobRunsEndsTheJobAndNotTheProcess) {
  UseGpu(0);
  std::optional<GpuHog> hog;
  int steps = 0;
  const auto fill = [&](const v1::Progress&) {
    if (++steps == 1) hog.emplace(size_t{16} << 20);  // Before the second step, which is to be recorded.
  };
  const auto refused = harness_.Train(job_, {.on_progress = fill, .devices = {Device{.gpu = 0}}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("the GPU is out of memory: "));
  hog.reset();
  const auto again = harness_.Train(job_, {.devices = {Device{.gpu = 0}}});
  EXPECT_TRUE(again.status().ok()) << again.status();
}

TEST_F(GpuWorkers, WithAGpuEachSumBetweenTheGpus) {
  if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two were compiled but not run";
  if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  ExpectTheLossesOfCpus({Device{.gpu = 0}, Device{.gpu = 1}});
  EXPECT_EQ(harness_.worker_metrics().exposed_allreduce_seconds.Count(), 2u * 2 * 32);
}

}  // namespace
}  // namespace sparrow
