// The member's end against a real coordinator: over a socket, and inside the process.

#include "coordinator/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/rpc.h"
#include "coordinator/coordinator.h"
#include "sparrow/v1/parameter_server.grpc.pb.h"
#include "tests/coordinator/plane_fixture.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);  // Far more than anything here takes.

CoordinatorOptions InMemory(const std::string& listen = "127.0.0.1:0") {
  CoordinatorOptions options;
  options.listen = listen;
  options.state = "";
  options.lease = absl::Seconds(10);
  options.heartbeat = absl::Milliseconds(20);
  return options;
}

std::unique_ptr<Coordinator> MustStart(const CoordinatorOptions& options, Metrics* metrics) {
  absl::StatusOr<std::unique_ptr<Coordinator>> started = Coordinator::Start(options, metrics);
  CHECK(started.ok()) << started.status();
  return *std::move(started);
}

class LinkTest : public testing::Test {
 protected:
  std::unique_ptr<Membership> Join(v1::MemberKind kind, const std::string& address) {
    Membership::Options options;
    options.registration = Registration(kind, address);
    absl::StatusOr<std::unique_ptr<Membership>> joined = Membership::Start(&link, std::move(options));
    CHECK(joined.ok()) << joined.status();
    return *std::move(joined);
  }

  Metrics metrics;
  std::unique_ptr<Coordinator> coordinator = MustStart(InMemory(""), &metrics);
  CoordinatorLink link{coordinator->InProcessChannel(), "this process"};
};

// A value that a callback sets and a test waits for.
template <typename T>
class Awaited {
 public:
  void Set(T value) {
    absl::MutexLock lock(&mu_);
    value_ = std::move(value);
  }
  // Waits until `wanted` holds of the value; false after kSoon.
  template <typename Wanted>
  bool Wait(const Wanted& wanted) {
    const auto holds = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return wanted(value_); };
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&holds), kSoon);
  }

 private:
  absl::Mutex mu_;
  T value_ ABSL_GUARDED_BY(mu_){};
};

TEST_F(LinkTest, AMembershipDeliversTheTaskAndItsEndFreesTheWorker) {
  const auto server = Join(v1::SERVER, "a:1");
  Awaited<v1::Task> task;
  Membership::Options options;
  options.registration = Registration(v1::WORKER, "10.0.0.1");
  options.on_heartbeat = [&](const v1::HeartbeatResponse& response) { task.Set(response.task()); };
  const auto worker = *Membership::Start(&link, std::move(options));

  const std::string job = link.Submit(Submission("first"))->job_id();
  worker->Nudge();
  ASSERT_TRUE(task.Wait([&](const v1::Task& now) { return now.job_id() == job; }));
  EXPECT_FALSE(link.Report(ReportOf(worker->member_id(), job, 0, v1::ReportRequest::SUCCEEDED))->stop());
  ASSERT_TRUE(task.Wait([](const v1::Task& now) { return now.job_id().empty(); }));
  EXPECT_EQ(link.GetJob(job)->status().state(), v1::JobStatus::SUCCEEDED);
}

TEST_F(LinkTest, AMemberThatStopsHasLeft) {
  auto server = Join(v1::SERVER, "a:1");
  EXPECT_EQ(link.GetCluster()->members_size(), 1);
  server->Stop("enough");
  server->Stop("enough");
  EXPECT_EQ(link.GetCluster()->members_size(), 0);
}

TEST_F(LinkTest, AMemberWhoseLeaseIsLostRegistersAnew) {
  const auto server = Join(v1::SERVER, "a:1");
  const std::string first = server->member_id();
  v1::LeaveRequest leave;  // As if its lease had run out.
  leave.set_member_id(first);
  ASSERT_TRUE(link.Leave(leave).ok());
  const absl::Time deadline = absl::Now() + kSoon;
  while ((server->member_id() == first || server->member_id().empty()) && absl::Now() < deadline) {
    server->Nudge();
    std::this_thread::yield();
  }
  EXPECT_EQ(server->member_id(), "server-2");
  EXPECT_TRUE(link.GetCluster()->members_size() == 1);
}

TEST_F(LinkTest, HeartbeatsCarryWhatTheMemberFillsIn) {
  Membership::Options options;
  options.registration = Registration(v1::SERVER, "a:1");
  options.before_heartbeat = [](v1::HeartbeatRequest* request) { request->set_rows(12'345); };
  Awaited<int> beats;
  std::atomic<int> count{0};
  options.on_heartbeat = [&](const v1::HeartbeatResponse&) { beats.Set(++count); };
  const auto server = *Membership::Start(&link, std::move(options));
  ASSERT_TRUE(beats.Wait([](int n) { return n >= 2; })) << "they come by themselves";
  EXPECT_EQ(link.GetCluster()->members(0).rows(), 12'345u);
}

TEST_F(LinkTest, AnotherVersionIsRefusedAtTheStart) {
  Membership::Options options;
  options.registration = Registration(v1::WORKER, "10.0.0.1");
  options.registration.set_version("9.9.9");
  const absl::Status status = Membership::Start(&link, std::move(options)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("9.9.9"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("coordinator this process"));
}

TEST_F(LinkTest, CancellationEndsAWaitAtOnce) {
  const auto server = Join(v1::SERVER, "a:1");
  const auto worker = Join(v1::WORKER, "10.0.0.1");
  v1::GetRendezvousRequest request;
  request.set_job_id(link.Submit(Submission("first"))->job_id());
  request.set_epoch(1);
  request.add_keys("never");
  request.set_timeout_ms(3'600'000);
  Cancellation cancellation;
  std::thread canceller([&] { cancellation.Cancel(); });
  EXPECT_TRUE(absl::IsCancelled(link.GetRendezvous(request, {.cancellation = &cancellation}).status()));
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(link.GetRendezvous(request, {.cancellation = &cancellation}).status()))
      << "and every later call";
  EXPECT_TRUE(absl::IsCancelled(
      link.WatchJob("job-1", [](const v1::JobStatus&) { return true; }, {.cancellation = &cancellation})));
}

TEST_F(LinkTest, RendezvousPassesValuesBetweenThreads) {
  const auto server = Join(v1::SERVER, "a:1");
  const auto worker = Join(v1::WORKER, "10.0.0.1");
  const std::string job = link.Submit(Submission("first"))->job_id();
  constexpr int kRanks = 8;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      v1::PutRendezvousRequest put;
      put.set_job_id(job);
      put.set_epoch(1);
      put.set_key(absl::StrCat("rank", rank));
      put.set_value(absl::StrCat("address", rank));
      EXPECT_TRUE(link.PutRendezvous(put).ok());
      v1::GetRendezvousRequest get;
      get.set_job_id(job);
      get.set_epoch(1);
      for (int other = 0; other < kRanks; ++other) get.add_keys(absl::StrCat("rank", other));
      get.set_timeout_ms(20'000);
      const absl::StatusOr<v1::GetRendezvousResponse> got = link.GetRendezvous(get);
      ASSERT_TRUE(got.ok()) << got.status();
      for (int other = 0; other < kRanks; ++other) EXPECT_EQ(got->values(other), absl::StrCat("address", other));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(LinkTest, EveryOneOfManyWatchersSeesTheEnd) {
  const auto server = Join(v1::SERVER, "a:1");
  const auto worker = Join(v1::WORKER, "10.0.0.1");
  const std::string job = link.Submit(Submission("first"))->job_id();
  constexpr int kWatchers = 64;
  absl::BlockingCounter started(kWatchers);
  std::vector<std::thread> watchers;
  std::atomic<int> succeeded{0};
  for (int i = 0; i < kWatchers; ++i) {
    watchers.emplace_back([&] {
      bool first = true;
      v1::JobStatus last;
      const absl::Status status = link.WatchJob(job, [&](const v1::JobStatus& now) {
        if (std::exchange(first, false)) started.DecrementCount();
        EXPECT_GE(now.progress().step(), last.progress().step()) << "never backwards";
        last = now;
        return true;
      });
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(last.loss_curve_size(), 0);
      succeeded += last.state() == v1::JobStatus::SUCCEEDED && last.progress().step() == 50;
    });
  }
  started.Wait();
  for (uint64_t step = 1; step <= 50; ++step) {
    v1::ReportRequest report = ReportOf(worker->member_id(), job, 0, v1::ReportRequest::RUNNING);
    report.mutable_progress()->set_step(step);
    ASSERT_TRUE(link.Report(report).ok());
  }
  ASSERT_TRUE(link.Report(ReportOf(worker->member_id(), job, 0, v1::ReportRequest::SUCCEEDED)).ok());
  for (std::thread& watcher : watchers) watcher.join();
  EXPECT_EQ(succeeded, kWatchers);
}

TEST_F(LinkTest, AWatchOfAnEndedJobGivesItsEndAndOfAnUnknownOneNotFound) {
  const std::string job = link.Submit(Submission("first"))->job_id();
  ASSERT_TRUE(link.CancelJob(job).ok());
  std::vector<v1::JobStatus::State> seen;
  const auto note = [&](const v1::JobStatus& now) {
    seen.push_back(now.state());
    return true;
  };
  EXPECT_TRUE(link.WatchJob(job, note).ok());
  EXPECT_THAT(seen, testing::ElementsAre(v1::JobStatus::CANCELLED));
  EXPECT_TRUE(absl::IsNotFound(link.WatchJob("job-7", note)));
}

TEST_F(LinkTest, AWatcherMayGoWhenItLikes) {
  const std::string job = link.Submit(Submission("first"))->job_id();
  EXPECT_TRUE(absl::IsCancelled(link.WatchJob(job, [](const v1::JobStatus&) { return false; })));
  ASSERT_TRUE(link.CancelJob(job).ok());
}

TEST_F(LinkTest, StoppingTheCoordinatorEndsWatchesAndWaitsInSeconds) {
  const auto server = Join(v1::SERVER, "a:1");
  const std::string job = link.Submit(Submission("first", 5))->job_id();
  absl::Notification watching;
  std::thread watcher([&] {
    bool first = true;
    const absl::Status status = link.WatchJob(job,
                                              [&](const v1::JobStatus&) {
                                                if (std::exchange(first, false)) watching.Notify();
                                                return true;
                                              },
                                              {.timeout = absl::Milliseconds(200)});
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("this process"));
  });
  watching.WaitForNotification();
  const absl::Time start = absl::Now();
  coordinator->Stop();
  coordinator->Stop();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  watcher.join();
}

TEST_F(LinkTest, CallsAreTimedByMethod) {
  ASSERT_TRUE(link.GetCluster().ok());
  ASSERT_TRUE(link.GetCluster().ok());
  EXPECT_THAT(metrics.Text(), HasSubstr("sparrow_coordinator_rpc_seconds_count{method=\"GetCluster\"} 2"));
  EXPECT_THAT(metrics.Text(), HasSubstr("sparrow_coordinator_rpc_seconds_count{method=\"Submit\"} 0"));
}

TEST(Link, NobodyAtTheAddressIsUnavailableAndNamed) {
  const absl::Status status = CoordinatorLink::Connect("127.0.0.1:1", absl::Milliseconds(200)).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
  CoordinatorLink link(MakeChannel("127.0.0.1:1"), "127.0.0.1:1");
  const absl::Time start = absl::Now();
  const absl::Status listed = link.ListJobs({.timeout = absl::Milliseconds(300)}).status();
  EXPECT_TRUE(absl::IsUnavailable(listed) || absl::IsDeadlineExceeded(listed)) << listed;
  EXPECT_THAT(std::string(listed.message()), HasSubstr("127.0.0.1:1"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

// As a server's address would be, or any other service's, given for --coordinator.
TEST(Link, AnotherServiceAtTheAddressIsNamedAsNoCoordinator) {
  v1::ParameterServer::CallbackService service;
  auto other = StartGrpcServer("127.0.0.1:0", {&service});
  ASSERT_TRUE(other.ok()) << other.status();
  const auto link = *CoordinatorLink::Connect(other->address, kSoon);
  const absl::Time start = absl::Now();
  for (const absl::Status& status :
       {link->ListJobs().status(), link->Register(Registration(v1::SERVER, "a:1")).status(),
        link->WatchJob("job-1", [](const v1::JobStatus&) { return true; })}) {
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(other->address + " is not a coordinator: a gRPC"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("; give the address that sparrow-coordinator printed"));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(5)) << "nothing is tried again";
}

TEST(Link, ARestartedCoordinatorIsFoundAgain) {
  TemporaryDirectory state;
  Metrics first_metrics;
  CoordinatorOptions options = InMemory();
  options.state = state.path();
  auto coordinator = MustStart(options, &first_metrics);
  options.listen = coordinator->address();
  const auto link = *CoordinatorLink::Connect(coordinator->address(), kSoon);
  Awaited<std::string> id;
  Membership* membership = nullptr;
  Membership::Options member;
  member.registration = Registration(v1::WORKER, "10.0.0.1");
  absl::Notification ready;
  member.on_heartbeat = [&](const v1::HeartbeatResponse&) {
    ready.WaitForNotification();
    id.Set(membership->member_id());
  };
  auto worker = *Membership::Start(link.get(), std::move(member));
  membership = worker.get();
  ready.Notify();
  ASSERT_TRUE(id.Wait([](const std::string& now) { return now == "worker-1"; }));
  const std::string job = link->Submit(Submission("first", 9))->job_id();

  coordinator->Stop();
  coordinator.reset();
  Metrics second_metrics;
  coordinator = MustStart(options, &second_metrics);  // At the same port, at once.
  ASSERT_TRUE(id.Wait([](const std::string& now) { return now == "worker-2"; }));
  EXPECT_EQ(link->GetJob(job)->status().state(), v1::JobStatus::QUEUED);
  worker->Stop("");
  coordinator->Stop();
}

TEST(Link, AMembershipGivesUpOnceAndSaysWhy) {
  Metrics metrics;
  auto coordinator = MustStart(InMemory(), &metrics);
  const auto link = *CoordinatorLink::Connect(coordinator->address(), kSoon);
  Membership::Options options;
  options.registration = Registration(v1::SERVER, "a:1");
  options.give_up_after = absl::Milliseconds(300);
  Awaited<absl::Status> lost;
  std::atomic<int> calls{0};
  options.on_lost = [&](absl::Status status) {
    ++calls;
    lost.Set(std::move(status));
  };
  auto server = *Membership::Start(link.get(), std::move(options));
  coordinator->Stop();
  absl::Status why;
  ASSERT_TRUE(lost.Wait([&](const absl::Status& now) {
    why = now;
    return !now.ok();
  }));
  EXPECT_TRUE(absl::IsUnavailable(why));
  EXPECT_THAT(std::string(why.message()), HasSubstr("has been away for"));
  server->Stop("");
  EXPECT_EQ(calls, 1);
}

TEST(Link, StoppingAMembershipDoesNotWaitForACoordinatorThatIsAway) {
  Metrics metrics;
  auto coordinator = MustStart(InMemory(), &metrics);
  const auto link = *CoordinatorLink::Connect(coordinator->address(), kSoon);
  Membership::Options options;
  options.registration = Registration(v1::SERVER, "a:1");
  auto server = *Membership::Start(link.get(), std::move(options));
  coordinator->Stop();
  server->Nudge();
  const absl::Time start = absl::Now();
  server->Stop("");
  EXPECT_LT(absl::Now() - start, absl::Seconds(5)) << "Leave's one try has 2 s";
}

TEST(LocalHost, LoopbackIsReachedFromLoopback) {
  EXPECT_EQ(*LocalHostTowards("127.0.0.1:7070"), "127.0.0.1");
  EXPECT_EQ(*LocalHostTowards("localhost:7070"), *LocalHostTowards("localhost:1"));
  EXPECT_EQ(*LocalHostTowards("unix:/tmp/x"), "127.0.0.1");
}

TEST(LocalHost, WhatIsNoAddressIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(LocalHostTowards("nowhere").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LocalHostTowards(":7070").status()));
  EXPECT_FALSE(LocalHostTowards("host.invalid:7070").ok());
}

}  // namespace
}  // namespace sparrow
