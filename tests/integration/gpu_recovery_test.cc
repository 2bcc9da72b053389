// Two workers with a GPU each, whose gradients NCCL sums, and one of them is killed in mid-step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "base/cuda/stream.h"
#include "tests/integration/recovery_fixture.h"

namespace sparrow {
namespace {

TEST(GpuRecovery, AWorkerThatIsKilledInACollectiveIsNamedAndTheLossCurveGoesOn) {
  if (GpuCount() < 2) GTEST_SKIP() << "FEWER THAN TWO GPUS HERE: sums between GPUs were compiled but not run";
  const TemporaryDirectory data;
  WriteText(data);
  LocalCluster cluster({.servers = 0, .workers = 2, .data_root = data.path(), .devices = {"cuda:0", "cuda:1"}});
  const double noticed =
      ExpectRecovery(&cluster, SPARROW_SOURCE_DIR,
                     SmallLanguageModel({"train.steps_max=1500", "model.gpt2.layers=4", "model.gpt2.heads=4",
                                         "model.gpt2.width=256", "model.gpt2.context=128", "train.batch_size=32",
                                         "train.deterministic=true", "checkpoint.every_steps=100"}),
                     "worker", absl::Milliseconds(100));
  std::printf("the job ended %.1f s after the kill\n", noticed);
  // It was NCCL's sum that was left, and not one through the host.
  EXPECT_THAT(cluster.workers()[0]->Stderr(), ::testing::HasSubstr("summed between 2 GPUs by NCCL"));
  cluster.workers()[0]->Signal(SIGTERM);
  EXPECT_EQ(cluster.workers()[0]->Wait(absl::Seconds(20)), 0) << cluster.workers()[0]->Stderr();
}

}  // namespace
}  // namespace sparrow
