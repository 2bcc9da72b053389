// NCCL is loaded, not linked: this runs with it and without it, on machines without a GPU too.

#include "dense/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "dense/device_collective.h"
#include "dense/reduction_terms.h"
#include "tests/worker/thread_collective.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

TEST(Nccl, WhereItIsItTellsItsVersion) {
  if (!NcclAbsence().empty()) GTEST_SKIP() << "NO NCCL HERE: " << NcclAbsence();
  EXPECT_GE(NcclVersion(), 20000u);
}

// An empty library of that name, in LD_LIBRARY_PATH, makes this run on a machine that has NCCL.
TEST(Nccl, WhereItIsNotWorkersSumThroughTheHostAndSayWhy) {
  if (NcclAbsence().empty()) GTEST_SKIP() << "NCCL IS HERE: what happens without it was not looked at";
  EXPECT_THAT(NcclAbsence(), HasSubstr("libnccl.so.2"));
  EXPECT_EQ(NcclVersion(), 0u);
  const auto made = MakeNcclCollective({.rank = 0, .size = 2}, nullptr);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("NCCL cannot be loaded: "));

  ThreadGroup group(2);
  std::vector<absl::StatusOr<ReductionPlan>> plans(2, absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&group, &plans, rank] {
      ThreadCollective member(&group, rank);
      // As worker/batch_trainer_gpu.cc asks.
      plans[rank] = AgreeOnReduction(
          {.able = NcclVersion() > 0, .library = NcclVersion(), .gpu = 100 + rank, .floats = 7, .layout = 3}, &member);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& plan : plans) {
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_FALSE(plan->on_gpus);
    EXPECT_EQ(plan->why_not, "rank 0 has no GPU, or no NCCL");
  }
}

}  // namespace
}  // namespace sparrow
