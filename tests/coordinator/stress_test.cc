// Many threads on all calls at once, with leases that run out meanwhile; at the end everything still adds up.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <iostream>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "coordinator/coordinator.h"
#include "coordinator/link.h"
#include "tests/coordinator/plane_fixture.h"

namespace sparrow {
namespace {

constexpr uint32_t kSeed = 7;

// A worker that does its tasks at once, and now and then fails one, or dies in it without a word.
class MockWorker {
 public:
  MockWorker(CoordinatorLink* link, uint32_t seed) : link_(link), random_(seed) {}

  void RunUntil(const std::atomic<bool>* stop) {
    while (!*stop) {
      if (id_.empty()) id_ = link_->Register(Registration(v1::WORKER, "h"))->member_id();
      v1::HeartbeatRequest heartbeat;
      heartbeat.set_member_id(id_);
      const absl::StatusOr<v1::HeartbeatResponse> response = link_->Heartbeat(heartbeat);
      if (absl::IsNotFound(response.status())) {
        id_.clear();
        continue;
      }
      ASSERT_TRUE(response.ok()) << response.status();
      if (response->has_task()) Do(response->task());
    }
  }

 private:
  void Do(const v1::Task& task) {
    v1::PutRendezvousRequest put;
    put.set_job_id(task.job_id());
    put.set_epoch(task.epoch());
    put.set_key(absl::StrCat(task.rank()));
    link_->PutRendezvous(put).IgnoreError();
    v1::GetRendezvousRequest get;
    get.set_job_id(task.job_id());
    get.set_epoch(task.epoch());
    for (uint32_t rank = 0; rank < task.workers(); ++rank) get.add_keys(absl::StrCat(rank));
    get.set_timeout_ms(200);
    const bool met = link_->GetRendezvous(get).ok();
    v1::ReportRequest report = ReportOf(id_, task.job_id(), task.rank(), v1::ReportRequest::RUNNING);
    report.mutable_progress()->set_step(1);
    link_->Report(report).status().IgnoreError();
    const uint32_t fate = random_() % 16;
    if (fate == 0) {
      id_.clear();  // Dies; its lease runs out.
      return;
    }
    report.set_end(fate == 1 || !met ? v1::ReportRequest::FAILED : v1::ReportRequest::SUCCEEDED);
    report.set_error("as arranged");
    const absl::Status reported = link_->Report(report).status();
    EXPECT_TRUE(reported.ok() || absl::IsNotFound(reported)) << reported;
  }

  CoordinatorLink* const link_;
  std::mt19937 random_;
  std::string id_;
};

TEST(CoordinatorStress, ManyThreadsOnAllCallsLeaveAConsistentWhole) {
  std::cout << "seed " << kSeed << std::endl;
  Metrics metrics;
  CoordinatorOptions options;
  options.listen = "";
  options.state = "";
  options.lease = absl::Milliseconds(300);
  options.heartbeat = absl::Milliseconds(50);
  const auto coordinator = *Coordinator::Start(options, &metrics);
  CoordinatorLink link(coordinator->InProcessChannel(), "test");

  std::atomic<bool> stop{false};
  std::vector<std::thread> members;
  std::vector<std::unique_ptr<Membership>> servers;
  for (int i = 0; i < 2; ++i) {
    Membership::Options server;
    server.registration = Registration(v1::SERVER, absl::StrCat("s:", i));
    servers.push_back(*Membership::Start(&link, std::move(server)));
  }
  for (uint32_t i = 0; i < 4; ++i) {
    members.emplace_back([&, i] { MockWorker(&link, kSeed + i).RunUntil(&stop); });
  }

  std::vector<std::thread> clients;
  std::atomic<int> ended{0};
  constexpr int kClients = 4;
  constexpr int kJobs = 12;
  for (uint32_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      std::mt19937 random(kSeed * 100 + i);
      for (int n = 0; n < kJobs; ++n) {
        const absl::StatusOr<v1::SubmitResponse> job =
            link.Submit(Submission(absl::StrCat("c", i), random() % 3, random() % 3));
        ASSERT_TRUE(job.ok()) << job.status();
        if (random() % 4 == 0) link.CancelJob(job->job_id()).IgnoreError();
        v1::JobStatus::State last = v1::JobStatus::STATE_UNSPECIFIED;
        const absl::Status watched = link.WatchJob(job->job_id(), [&](const v1::JobStatus& now) {
          last = now.state();
          return true;
        });
        ASSERT_TRUE(watched.ok()) << watched;
        ended += last == v1::JobStatus::SUCCEEDED || last == v1::JobStatus::FAILED || last == v1::JobStatus::CANCELLED;
        EXPECT_TRUE(link.ListJobs().ok());
        EXPECT_TRUE(link.GetCluster().ok());
        EXPECT_EQ(link.GetJob(job->job_id())->status().state(), last) << "a final state stays";
      }
    });
  }
  for (std::thread& client : clients) client.join();
  stop = true;
  for (std::thread& member : members) member.join();
  EXPECT_EQ(ended, kClients * kJobs);
  const v1::ListJobsResponse jobs = *link.ListJobs();
  EXPECT_EQ(jobs.jobs_size(), kClients * kJobs);
  std::map<std::string, int> states;
  for (const v1::JobStatus& job : jobs.jobs()) ++states[v1::JobStatus::State_Name(job.state())];
  for (const auto& [state, count] : states) std::cout << state << ": " << count << "\n";
  EXPECT_GT(states["SUCCEEDED"], 0);
  EXPECT_THAT(metrics.Text(), testing::HasSubstr("sparrow_coordinator_rendezvous_entries 0\n"));
  servers.clear();
}

}  // namespace
}  // namespace sparrow
