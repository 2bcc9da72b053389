#include "client/embedded_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "tests/client/small_job.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr char kDlrm[] = "dlrm { bottom: [ 8, 4 ] top: [ 8, 1 ] }";

class EmbeddedClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteSmallLog(directory_.File("train.tsv"), 1000, 1);
    WriteSmallLog(directory_.File("test.tsv"), 300, 2);
  }

  EmbeddedClusterOptions Options(uint32_t servers, uint32_t workers) const {
    EmbeddedClusterOptions options;
    options.servers = servers;
    options.workers = workers;
    options.data_root = directory_.path();
    options.checkpoint_root = directory_.File("checkpoints");
    options.memory_bytes = 64 << 20;
    return options;
  }

  TemporaryDirectory directory_;
};

TEST_F(EmbeddedClusterTest, StartsEveryMemberAndStopsWithinSeconds) {
  absl::Time stop_began;
  {
    absl::StatusOr<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Start(Options(3, 2));
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    const absl::StatusOr<v1::GetClusterResponse> members = (*cluster)->link()->GetCluster();
    ASSERT_TRUE(members.ok()) << members.status();
    int servers = 0, workers = 0;
    for (const v1::Member& member : members->members()) {
      servers += member.kind() == v1::SERVER ? 1 : 0;
      workers += member.kind() == v1::WORKER ? 1 : 0;
    }
    EXPECT_EQ(servers, 3);
    EXPECT_EQ(workers, 2);
    EXPECT_EQ((*cluster)->metrics_address(), "");
    stop_began = absl::Now();
  }
  EXPECT_LT(absl::Now() - stop_began, absl::Seconds(10));
}

TEST_F(EmbeddedClusterTest, TheLossesDoNotDependOnMembersOrSockets) {
  const v1::Job job = SmallJob(kDlrm);
  const v1::JobStatus one = TrainEmbedded(job, Options(1, 1));
  ASSERT_EQ(one.state(), v1::JobStatus::SUCCEEDED) << one.message();
  ASSERT_EQ(one.loss_curve_size(), 16);  // 1,000 rows by 64.
  EXPECT_EQ(one.summary().rows_trained(), 1000u);
  EXPECT_EQ(one.summary().eval().rows(), 300u);
  EmbeddedClusterOptions with_sockets = Options(2, 2);
  with_sockets.sockets = true;
  for (const EmbeddedClusterOptions& options : {Options(3, 2), with_sockets}) {
    SCOPED_TRACE(options.sockets);
    const v1::JobStatus more = TrainEmbedded(job, options);
    ASSERT_EQ(more.state(), v1::JobStatus::SUCCEEDED) << more.message();
    ASSERT_EQ(more.loss_curve_size(), one.loss_curve_size());
    for (int i = 0; i < one.loss_curve_size(); ++i) {
      EXPECT_NEAR(more.loss_curve(i).loss(), one.loss_curve(i).loss(), 1e-4 * one.loss_curve(i).loss()) << i;
    }
    EXPECT_EQ(more.summary().workers(), options.workers);
    EXPECT_EQ(more.summary().servers(), options.servers);
  }
}

TEST_F(EmbeddedClusterTest, EveryTransportIsWrapped) {
  for (const bool sockets : {false, true}) {
    SCOPED_TRACE(sockets);
    std::atomic<int> wrapped{0};
    EmbeddedClusterOptions options = Options(2, 2);
    options.sockets = sockets;
    options.wrap_transport = [&wrapped](std::unique_ptr<PsTransport> inner) {
      ++wrapped;
      return inner;
    };
    const v1::JobStatus ended = TrainEmbedded(SmallJob(kDlrm), options);
    EXPECT_EQ(ended.state(), v1::JobStatus::SUCCEEDED) << ended.message();
    EXPECT_EQ(wrapped, 4);  // Of each worker to each server.
  }
}

TEST_F(EmbeddedClusterTest, ATinyBudgetIsSeenInTheShardsUsage) {
  EmbeddedClusterOptions options = Options(1, 1);
  options.memory_bytes = 6 << 10;  // The indexes alone use it up.
  absl::StatusOr<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  v1::Job job = SmallJob(kDlrm);
  job.mutable_train()->set_epochs(1000000);
  v1::SubmitRequest request;
  *request.mutable_job() = job;
  const absl::StatusOr<v1::SubmitResponse> submitted = (*cluster)->link()->Submit(request);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const absl::Status watched = (*cluster)->link()->WatchJob(
      submitted->job_id(), [](const v1::JobStatus& status) { return status.progress().step() < 100; });
  EXPECT_TRUE(absl::IsCancelled(watched)) << watched;
  const Shard::Usage usage = (*cluster)->shard(0)->GetUsage();
  EXPECT_GT(usage.evictions, 0u);
  EXPECT_GT(usage.cold_reads, 0u);
}

TEST_F(EmbeddedClusterTest, EndsInMidJobWithinSeconds) {
  v1::Job job = SmallJob(kDlrm);
  job.mutable_train()->set_epochs(1000000);
  absl::Time stop_began;
  {
    absl::StatusOr<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Start(Options(2, 2));
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    v1::SubmitRequest request;
    *request.mutable_job() = job;
    const absl::StatusOr<v1::SubmitResponse> submitted = (*cluster)->link()->Submit(request);
    ASSERT_TRUE(submitted.ok()) << submitted.status();
    const absl::Status watched = (*cluster)->link()->WatchJob(
        submitted->job_id(), [](const v1::JobStatus& status) { return status.progress().step() == 0; });
    EXPECT_TRUE(absl::IsCancelled(watched)) << watched;
    stop_began = absl::Now();
  }
  EXPECT_LT(absl::Now() - stop_began, absl::Seconds(10));
}

TEST_F(EmbeddedClusterTest, ServesMetricsOfAllParts) {
  EmbeddedClusterOptions options = Options(1, 1);
  options.metrics = "127.0.0.1:0";
  absl::StatusOr<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_THAT((*cluster)->metrics_address(), testing::StartsWith("127.0.0.1:"));

  EmbeddedClusterOptions second = Options(1, 1);
  second.metrics = (*cluster)->metrics_address();
  const absl::StatusOr<std::unique_ptr<EmbeddedCluster>> clash = EmbeddedCluster::Start(second);
  ASSERT_FALSE(clash.ok());
  EXPECT_THAT(std::string(clash.status().message()), HasSubstr(second.metrics));
}

TEST_F(EmbeddedClusterTest, RefusesAClusterOfNobody) {
  EXPECT_FALSE(EmbeddedCluster::Start(Options(0, 1)).ok());
  EXPECT_FALSE(EmbeddedCluster::Start(Options(1, 0)).ok());
}

TEST_F(EmbeddedClusterTest, LeavesNothingInTheGivenScratchDirectoryOfAnotherRun) {
  EmbeddedClusterOptions options = Options(2, 1);
  options.scratch = directory_.File("scratch");
  for (int run = 0; run < 2; ++run) {
    const v1::JobStatus status = TrainEmbedded(SmallJob(kDlrm), options);
    EXPECT_EQ(status.state(), v1::JobStatus::SUCCEEDED) << "run " << run << ": " << status.message();
  }
}

}  // namespace
}  // namespace sparrow
