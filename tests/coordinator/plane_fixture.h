#ifndef SPARROW_TESTS_COORDINATOR_PLANE_FIXTURE_H_
#define SPARROW_TESTS_COORDINATOR_PLANE_FIXTURE_H_

// A control plane with a clock that stands still, and short words for what members and clients do with it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "coordinator/control_plane.h"
#include "coordinator/version.h"

namespace sparrow {

// A job that a coordinator accepts; 0 workers or servers: all that are there.
inline v1::SubmitRequest Submission(const std::string& name, uint32_t workers = 0, uint32_t servers = 0) {
  v1::SubmitRequest request;
  v1::Job* job = request.mutable_job();
  job->set_name(name);
  job->mutable_data()->mutable_train()->add_path("train.tsv");
  job->mutable_model()->mutable_dlrm()->add_top(1);
  job->mutable_train()->set_batch_size(16);
  job->mutable_cluster()->set_workers(workers);
  job->mutable_cluster()->set_servers(servers);
  return request;
}

inline v1::RegisterRequest Registration(v1::MemberKind kind, const std::string& address) {
  v1::RegisterRequest request;
  request.set_kind(kind);
  request.set_address(address);
  request.set_version(kVersion);
  return request;
}

inline v1::ReportRequest ReportOf(const std::string& worker_id, const std::string& job_id, uint32_t rank,
                                  v1::ReportRequest::End end, const std::string& error = "") {
  v1::ReportRequest request;
  request.set_member_id(worker_id);
  request.set_job_id(job_id);
  request.set_epoch(1);
  request.set_rank(rank);
  request.set_end(end);
  request.set_error(error);
  return request;
}
class PlaneTest : public testing::Test {
 protected:
  explicit PlaneTest(const std::string& state = "") { Restart(state); }

  // A new control plane, as after a restart of the coordinator.
  void Restart(const std::string& state) {
    plane.reset();
    coordinator_metrics.reset();
    store.reset();
    metrics = std::make_unique<Metrics>();
    coordinator_metrics = std::make_unique<CoordinatorMetrics>(metrics.get());
    absl::StatusOr<std::unique_ptr<StateStore>> opened = StateStore::Open(state);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store = *std::move(opened);
    absl::StatusOr<std::unique_ptr<ControlPlane>> created =
        ControlPlane::Create({.lease = kLease, .heartbeat = absl::Milliseconds(500), .clock = &clock}, store.get(),
                             coordinator_metrics.get());
    ASSERT_TRUE(created.ok()) << created.status();
    plane = *std::move(created);
  }

  std::string AddServer(const std::string& address) { return Join(v1::SERVER, address); }
  std::string AddWorker(const std::string& address = "10.0.0.9") { return Join(v1::WORKER, address); }
  std::string Join(v1::MemberKind kind, const std::string& address) {
    const absl::StatusOr<v1::RegisterResponse> response = plane->Register(Registration(kind, address));
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->member_id() : "";
  }

  std::string Submit(const v1::SubmitRequest& request) {
    const absl::StatusOr<v1::SubmitResponse> response = plane->Submit(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->job_id() : "";
  }

  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const std::string& member_id) {
    v1::HeartbeatRequest request;
    request.set_member_id(member_id);
    // Workers say what they run: the task that they were told last, until they report its end.
    const auto running = running_.find(member_id);
    if (running != running_.end()) request.set_job_id(running->second);
    absl::StatusOr<v1::HeartbeatResponse> response = plane->Heartbeat(request);
    if (response.ok() && response->has_task()) running_[member_id] = response->task().job_id();
    return response;
  }
  // The task that the worker is told, without a job id if there is none.
  v1::Task TaskOf(const std::string& worker_id) {
    const absl::StatusOr<v1::HeartbeatResponse> response = Heartbeat(worker_id);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->task() : v1::Task();
  }

  // Whether the worker is told to stop.
  bool Report(const std::string& worker_id, const std::string& job_id, uint32_t rank, v1::ReportRequest::End end,
              const std::string& error = "") {
    const absl::StatusOr<v1::ReportResponse> response = plane->Report(ReportOf(worker_id, job_id, rank, end, error));
    const auto running = running_.find(worker_id);
    if (end != v1::ReportRequest::RUNNING && running != running_.end() && running->second == job_id) {
      running_.erase(running);
    }
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() && response->stop();
  }

  v1::JobStatus StatusOf(const std::string& job_id) {
    const absl::StatusOr<ControlPlane::Snapshot> snapshot = plane->Look(job_id);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return snapshot.ok() ? snapshot->status : v1::JobStatus();
  }
  v1::JobStatus::State StateOf(const std::string& job_id) { return StatusOf(job_id).state(); }

  // Time passes while the coordinator runs; the members named are heard of.
  void Pass(absl::Duration time, const std::vector<std::string>& alive = {}) {
    while (time > absl::ZeroDuration()) {
      const absl::Duration step = std::min(time, kLease / 4);
      clock.Advance(step);
      time -= step;
      for (const std::string& id : alive) EXPECT_TRUE(Heartbeat(id).ok()) << id;
      plane->Tick();
    }
  }

  static constexpr absl::Duration kLease = absl::Seconds(10);

  FakeClock clock{absl::FromUnixSeconds(1'700'000'000)};
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<CoordinatorMetrics> coordinator_metrics;
  std::unique_ptr<StateStore> store;
  std::unique_ptr<ControlPlane> plane;

 private:
  std::map<std::string, std::string> running_;  // Worker -> job.
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_COORDINATOR_PLANE_FIXTURE_H_
