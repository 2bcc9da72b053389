#ifndef SPARROW_COORDINATOR_CONTROL_PLANE_H_
#define SPARROW_COORDINATOR_CONTROL_PLANE_H_

// What the coordinator does, without gRPC and without threads: members, jobs and the rendezvous board under one lock.
// Each call of coordinator.proto is a method here; time passes in Tick.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "coordinator/jobs.h"
#include "coordinator/members.h"
#include "coordinator/metrics.h"
#include "coordinator/placement.h"
#include "coordinator/rendezvous.h"
#include "coordinator/state_store.h"
#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

// Somebody who wants to know when a job changes. Thread-safe.
class JobWatcher {
 public:
  virtual ~JobWatcher() = default;
  // The job's status may be another one now: look. Called without any lock of the control plane.
  virtual void OnChange() = 0;
};

// Thread-safe. No method waits, but for the disk.
class ControlPlane {
 public:
  struct Options {
    absl::Duration lease;
    absl::Duration heartbeat;
    const Clock* clock = Clock::Real();
  };

  // `store` and `metrics` outlive this. Reads what the store holds.
  static absl::StatusOr<std::unique_ptr<ControlPlane>> Create(const Options& options, StateStore* store,
                                                              const CoordinatorMetrics* metrics);

  absl::StatusOr<v1::RegisterResponse> Register(const v1::RegisterRequest& request);
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request);
  absl::Status Leave(const v1::LeaveRequest& request);
  absl::StatusOr<v1::ReportResponse> Report(const v1::ReportRequest& request);

  absl::Status PutRendezvous(const v1::PutRendezvousRequest& request);
  // Calls `done` once, from any thread, perhaps before this returns.
  void GetRendezvous(const v1::GetRendezvousRequest& request, RendezvousBoard::Done done);

  absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitRequest& request);
  v1::ListJobsResponse ListJobs();
  absl::StatusOr<v1::GetJobResponse> GetJob(const std::string& job_id);
  absl::Status CancelJob(const std::string& job_id);
  v1::GetClusterResponse GetCluster();

  struct Snapshot {
    v1::JobStatus status;  // Without the loss curve.
    uint64_t version = 0;  // Grows with each change.
    bool final = false;
  };
  absl::StatusOr<Snapshot> Look(const std::string& job_id);
  // Until it is destroyed, or ShutDown. NotFound if there is no such job.
  absl::Status Watch(const std::string& job_id, std::weak_ptr<JobWatcher> watcher);

  // Lets leases and waits run out. To be called often: after half a lease without a call (the process was stopped, the
  // machine slept, its clock was set) nobody can say who was silent meanwhile, and every member gets a new lease.
  void Tick();

  // From here on calls are refused with Unavailable, waits are answered so, and watchers are told to look. Keeps what
  // running jobs have reported. Idempotent.
  void ShutDown();

 private:
  class Section;

  ControlPlane(const Options& options, StateStore* store, const CoordinatorMetrics* metrics);

  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<uint64_t> NextNumber(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<MemberRecord*> FindMember(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveMember(const std::string& id, const std::string& how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The job whose board a call is about, if it runs in this epoch.
  absl::Status CheckRendezvous(const std::string& job_id, uint64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnJobChange(const JobRecord& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts what can start and says of the rest what it waits for.
  void Schedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // An error of the store: it stays queued.
  absl::Status StartJob(JobRecord* job, const Placement& placement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Supply CurrentSupply() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetGauges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  StateStore* const store_;
  const CoordinatorMetrics* const metrics_;

  absl::Mutex mu_;
  Members members_ ABSL_GUARDED_BY(mu_);
  Jobs jobs_ ABSL_GUARDED_BY(mu_);
  RendezvousBoard board_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, uint64_t> next_numbers_ ABSL_GUARDED_BY(mu_);
  uint64_t shard_map_version_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::vector<std::weak_ptr<JobWatcher>>> watchers_ ABSL_GUARDED_BY(mu_);  // By job id.
  RendezvousBoard::Ready ready_ ABSL_GUARDED_BY(mu_);  // To be called when the lock is released.
  bool changed_ ABSL_GUARDED_BY(mu_) = true;           // Members or jobs, since the last Schedule.
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time last_tick_ ABSL_GUARDED_BY(mu_);
  // Jobs that were queued when an earlier process ended, and that want all members, wait until these had time to
  // return.
  absl::Time members_are_back_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  uint64_t restored_jobs_end_ ABSL_GUARDED_BY(mu_) = 0;  // Jobs with a smaller number are of an earlier process.
};

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_CONTROL_PLANE_H_
