#ifndef SPARROW_COORDINATOR_JOBS_H_
#define SPARROW_COORDINATOR_JOBS_H_

// The jobs: a queue, and the state machine of each.
//
//   QUEUED --Start--> RUNNING --every worker SUCCEEDED--------------------------> SUCCEEDED
//     |                  |-----a worker FAILED, or a member is gone-------------> FAILED
//     |                  '-----Cancel, then every worker has ended or is gone---> CANCELLED
//     '--Cancel--> CANCELLED
//
// A job that has FAILED is over for those who watch it, while its other workers still stop: each keeps its task until
// it has reported its end (Release).

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/job_history.h"
#include "coordinator/state_store.h"
#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

// Limits, so that no client can exhaust the coordinator.
inline constexpr size_t kQueuedJobsMax = 10'000;
inline constexpr size_t kFinishedJobsKept = 1'000;  // The oldest beyond them are forgotten.
inline constexpr size_t kJobBytesMax = 4 << 20;

// The member that a rank of a job has, or a server that it uses.
struct JobMember {
  std::string id;
  std::string name;     // For messages: "worker-1 (10.0.0.7)".
  std::string address;  // Of servers.
  // Workers: how it ended, or RUNNING. A worker that is gone has ended.
  v1::ReportRequest::End end = v1::ReportRequest::RUNNING;
  bool gone = false;
  bool seen = false;  // A heartbeat has said that it has the task.

  bool ended() const { return gone || end != v1::ReportRequest::RUNNING; }
};

struct JobRecord {
  uint64_t number = 0;  // 3 for "job-3"
  v1::SubmitRequest request;
  v1::JobStatus status;  // With the loss curve.

  // Of a job that has been started by this process.
  std::vector<JobMember> workers;  // By rank.
  std::vector<JobMember> servers;  // By index in the shard map.
  v1::ShardMap shard_map;
  bool cancelling = false;
  JobHistory history;

  uint64_t version = 1;  // Grows with every change of `status`.

  const std::string& id() const { return status.job_id(); }
  bool final() const;
  bool AllWorkersEnded() const;
};

// OK if a job may be queued: InvalidArgument names the field, what it holds and what it may hold.
absl::Status ValidateSubmission(const v1::SubmitRequest& request);

// Not thread-safe. Pointers stay valid until the next Submit.
class Jobs {
 public:
  // Called after each change of a job's status.
  using OnChange = std::function<void(const JobRecord& job)>;
  // Called when a worker has no task any more: it has ended, and so has its job.
  using OnRelease = std::function<void(const std::string& worker_id)>;

  // `store` outlives this.
  Jobs(StateStore* store, OnChange on_change, OnRelease on_release);

  // Reads the jobs of an earlier process from the store. Those that were RUNNING become FAILED.
  absl::Status Load(absl::Time now);
  // Writes what is only in memory: the progress of running jobs.
  absl::Status Save();

  // Queues a job and has it on disk before it returns. A repeat (same request_id) gives the same job.
  absl::StatusOr<const JobRecord*> Submit(const v1::SubmitRequest& request, absl::Time now);
  // NotFound lists the known ids. InvalidArgument for what is no job id.
  absl::StatusOr<JobRecord*> Find(const std::string& job_id);
  absl::Status Cancel(const std::string& job_id, absl::Time now);

  // The queue, first in first.
  std::vector<JobRecord*> Queued();
  std::vector<JobRecord*> Running();
  void SetWaitsFor(JobRecord* job, const std::string& waits_for);
  // QUEUED -> RUNNING.
  void Start(JobRecord* job, std::vector<JobMember> workers, std::vector<JobMember> servers, v1::ShardMap shard_map,
             absl::Time now);

  // A worker's report. NotFound, FailedPrecondition (another epoch, not its rank) or InvalidArgument (too large). May
  // be repeated.
  absl::StatusOr<v1::ReportResponse> Report(const v1::ReportRequest& request, absl::Time now);

  // The worker that has a task of this job says whether it runs it. One that does not, and has reported no end, never
  // began it (the job ended before) or could not report: then its task ends here.
  void WorkerRuns(const std::string& job_id, const std::string& worker_id, bool runs, absl::Time now);

  // A member is no longer there; `how` continues its name: "left", "was not heard of for 10 s".
  void MemberGone(const std::string& member_id, const std::string& how, absl::Time now);

  // Every job, by number.
  const std::map<uint64_t, JobRecord>& all() const { return jobs_; }

 private:
  void Fail(JobRecord* job, const std::string& message, absl::Time now);
  void End(JobRecord* job, v1::JobStatus::State state, const std::string& message, absl::Time now);
  // A rank of a RUNNING job has ended: maybe the job has too.
  void Settle(JobRecord* job, absl::Time now);
  void Changed(JobRecord* job);
  absl::Status Persist(const JobRecord& job, bool with_request);
  void ForgetOld();

  StateStore* const store_;
  const OnChange on_change_;
  const OnRelease on_release_;

  std::map<uint64_t, JobRecord> jobs_;
  std::map<std::string, uint64_t> by_request_;  // request_id -> number
  uint64_t next_ = 1;
};

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_JOBS_H_
