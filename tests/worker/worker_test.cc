// The worker daemon inside a whole cluster of one process.

#include "worker/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "client/embedded_cluster.h"
#include "tests/support/temporary_directory.h"
#include "tests/worker/training_harness.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

class WorkerInACluster : public ::testing::TestWithParam<uint32_t> {
 protected:
  WorkerInACluster() {
    WriteClicks(directory_.File("train.tsv"), 3200, 1);
    WriteClicks(directory_.File("test.tsv"), 100, 2);
    EmbeddedClusterOptions options;
    options.workers = GetParam();
    options.servers = 2;
    options.data_root = directory_.path();
    options.checkpoint_root = directory_.File("checkpoints");
    options.memory_bytes = 64 << 20;
    auto cluster = EmbeddedCluster::Start(options);
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = std::move(*cluster);
  }

  std::string Submit(const v1::Job& job) {
    v1::SubmitRequest request;
    *request.mutable_job() = job;
    const auto submitted = cluster_->link()->Submit(request);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    return submitted.ok() ? submitted->job_id() : "";
  }
  v1::JobStatus WaitFor(const std::string& job_id) {
    v1::JobStatus last;
    const absl::Status watched = cluster_->link()->WatchJob(job_id, [&](const v1::JobStatus& status) {
      last = status;
      return true;
    });
    EXPECT_TRUE(watched.ok()) << watched;
    return last;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<EmbeddedCluster> cluster_;
};

TEST_P(WorkerInACluster, TrainsAJobAndReportsEveryLoss) {
  const std::string id = Submit(ClickJob());
  const v1::JobStatus status = WaitFor(id);
  ASSERT_EQ(status.state(), v1::JobStatus::SUCCEEDED) << status.message();
  EXPECT_EQ(status.summary().steps(), 100u);
  EXPECT_EQ(status.summary().rows_trained(), 3200u);
  EXPECT_EQ(status.summary().workers(), GetParam());
  const auto job = cluster_->link()->GetJob(id);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->status().loss_curve_size(), 100);
}

TEST_P(WorkerInACluster, AfterAFailedJobItRunsTheNext) {
  v1::Job broken = ClickJob();
  broken.mutable_data()->mutable_train()->set_path(0, "broken.tsv");
  std::ofstream file(directory_.File("broken.tsv"));
  for (int i = 0; i < 1000; ++i) file << (i == 700 ? "x" : "1") << "\t1\t2\t3\t4\t5\n";
  file.close();
  const v1::JobStatus failed = WaitFor(Submit(broken));
  EXPECT_EQ(failed.state(), v1::JobStatus::FAILED);
  // The cause, not what another worker saw of it.
  EXPECT_THAT(failed.message(), HasSubstr("broken.tsv:701"));
  const v1::JobStatus next = WaitFor(Submit(ClickJob()));
  EXPECT_EQ(next.state(), v1::JobStatus::SUCCEEDED) << next.message();
}

TEST_P(WorkerInACluster, ACancelledJobEndsWithinSecondsAndTheNextOneRuns) {
  v1::Job endless = ClickJob();
  endless.mutable_train()->set_epochs(1000000);
  const std::string id = Submit(endless);
  const absl::Status watched =
      cluster_->link()->WatchJob(id, [&](const v1::JobStatus& status) { return status.progress().step() < 50; });
  ASSERT_TRUE(absl::IsCancelled(watched)) << watched;
  const absl::Time start = absl::Now();
  ASSERT_TRUE(cluster_->link()->CancelJob(id).ok());
  EXPECT_EQ(WaitFor(id).state(), v1::JobStatus::CANCELLED);
  const v1::JobStatus next = WaitFor(Submit(ClickJob()));
  EXPECT_EQ(next.state(), v1::JobStatus::SUCCEEDED) << next.message();
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

TEST_P(WorkerInACluster, StoppingInTheMiddleOfAJobTakesSeconds) {
  v1::Job endless = ClickJob();
  endless.mutable_train()->set_epochs(1000000);
  const std::string id = Submit(endless);
  const absl::Status watched =
      cluster_->link()->WatchJob(id, [&](const v1::JobStatus& status) { return status.progress().step() < 50; });
  ASSERT_TRUE(absl::IsCancelled(watched)) << watched;
  const absl::Time start = absl::Now();
  cluster_.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

INSTANTIATE_TEST_SUITE_P(Workers, WorkerInACluster, ::testing::Values(1, 2));

}  // namespace
}  // namespace sparrow
