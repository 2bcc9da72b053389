#ifndef SPARROW_SERVER_JOB_H_
#define SPARROW_SERVER_JOB_H_

// One job in one epoch on this server: its tables, the step it is at, the pulls that wait for the next one.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/task_pool.h"
#include "embedding/table.h"
#include "server/call_memory.h"
#include "server/job_spec.h"
#include "server/kept_pool.h"
#include "server/loans.h"
#include "server/metrics.h"
#include "server/push_accumulator.h"
#include "server/step_pulls.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// Thread-safe. REQUIRES, for all but Close, CancelPull and Stats: Open has returned OK.
class Job {
 public:
  using Done = std::function<void(absl::Status)>;

  struct Environment {
    std::string directory;  // Of the cold tier; this job's alone, removed with it.
    std::string checkpoint_root;
    uint64_t message_bytes_max = 0;
    MemoryBudget* budget = nullptr;
    std::shared_ptr<CallMemory> memory;     // With the shard, and the messages of its service.
    std::shared_ptr<TaskPool> task_pool;    // With the shard and its other jobs.
    std::shared_ptr<ColdShare> cold_share;  // With the shard and its other jobs.
    ServerMetrics metrics;
  };

  Job(JobSpec spec, Environment environment);
  ~Job();  // REQUIRES: closed, or never opened.
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const JobSpec& spec() const { return spec_; }

  // Makes the tables, and fills them from spec().restore_from. Called once, by whoever made the job; others wait.
  absl::Status Open();
  absl::Status WaitUntilOpen();  // What Open returned.
  bool IsOpen() const { return opened_.HasBeenNotified(); }
  std::vector<uint64_t> RowsByTable() const;

  // As in Shard.
  void Pull(uint64_t id, const v1::PullRequest* request, std::span<const std::span<float>> rows,
            v1::PullResponse* response, Done done);
  bool CancelPull(uint64_t id);  // False: not waiting here.
  absl::Status Push(const v1::PushRequest& request, std::span<const std::span<const char>> beside,
                    v1::PushResponse* response);
  absl::Status SaveTables(const v1::SaveTablesRequest& request, v1::SaveTablesResponse* response);

  // Ends waiting pulls with `reason`, and every later call. Idempotent; the first reason stays.
  void Close(const absl::Status& reason);

  // Sums over tables; what was last known while tables are being saved, so that it never waits long.
  TableStats Stats();

 private:
  struct WaitingPull {
    const v1::PullRequest* request;
    std::span<const std::span<float>> rows;
    v1::PullResponse* response;
    Done done;
    CallMemory::Hold memory;
  };
  using WaitingPulls = std::map<uint64_t, WaitingPull>;  // By id: answered in order of arrival.
  // Summed gradients of a step or of a part of it: what Table::Apply gets.
  struct TableUpdate {
    uint32_t table = 0;
    std::vector<RowGradients*> sources;  // To be summed into the first. Or, empty:
    std::span<const Key> keys;           // already sums.
    std::span<const float> gradients;
  };

  absl::Status OpenTables();
  // Notes a training pull's keys, in a job with prefetch. Adds to *ready the pulls ahead that it was the last to delay.
  absl::Status NotePull(const v1::PullRequest& request, WaitingPulls* ready);
  // Whether a pull can be answered now: its step has come and is not being applied, or it is ahead and all pulls of the
  // step before are in.
  bool CanRead(const v1::PullRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeReady(WaitingPulls* ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(WaitingPulls* ready);
  // In a job with prefetch: that the worker's pulls are in, and that it pushes no row that nobody pulled.
  absl::Status CheckPulled(const v1::PushRequest& request);
  // That the disk takes what the push may drive out of memory: once rows change, an error ends the job.
  absl::Status CheckRoom(const v1::PushRequest& request);
  // A push that is no part of a step: rows that stay lent, as they are now.
  absl::Status WriteBack(const v1::PushRequest& request, const PushBytes& bytes_of, PlannedTables* plans);
  absl::Status ReadRows(const v1::PullRequest& request, std::span<const std::span<float>> rows,
                        v1::PullResponse* response);
  // Whoever reads rows as of `step` says so, and says when he is through; Refused tells why he may not.
  absl::Status Refused(absl::string_view what, uint64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartReading(uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { ++reading_[step - applied_]; }
  void EndReading(uint64_t step);
  bool NobodyReads() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return reading_[0] == 0; }

  // What Apply gets of a lone worker's part, whose gradients are sums; and of all parts of all workers, with what
  // summing them takes.
  static std::vector<TableUpdate> UpdatesOf(const PushPart& part);
  std::vector<TableUpdate> UpdatesOf(const PushAccumulator::Step& step, CallMemory::Hold* sum_memory) const;

  // Changes rows for step applied_. REQUIRES: nobody reads them (applying_ > 0).
  absl::Status Apply(std::vector<TableUpdate> updates, const Table::ApplyOptions& options);
  // After the last Apply of a step: the next one begins.
  absl::Status FinishStep(uint64_t step);
  // Of a push: whether it is a part of the step to be applied next that has not come before; an error if it is of
  // another step, or the job has ended.
  absl::StatusOr<bool> IsNew(const v1::PushRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AcknowledgeAgain(v1::PushResponse* response);
  void CountDecisions();
  void End(const absl::Status& reason, WaitingPulls* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const JobSpec spec_;
  const Environment environment_;

  // Set by Open, constant once opened_ is notified.
  std::unique_ptr<ColdStore> cold_;
  std::vector<std::unique_ptr<Table>> tables_;
  absl::Status open_status_;
  absl::Notification opened_;

  Loans loans_;

  RowGradientsPool pool_;
  KeptPool<std::vector<float>> float_buffers_;

  std::vector<GradientSum> sums_;  // [tables]. Of who applies the step of several workers.
  CallMemory::Hold sums_memory_;   // Likewise.

  // Nobody changes a row while somebody reads it as it was before, and the other way round: `changing_` keeps later
  // readers out, those under way are waited for. Pulls ahead go beside both: they leave out what a push may change.
  absl::Mutex mu_;
  uint64_t applied_ ABSL_GUARDED_BY(mu_);       // Steps applied: the version of the rows.
  bool changing_ ABSL_GUARDED_BY(mu_) = false;  // Rows are not those of applied_ any more, nor all of the next step.
  uint32_t applying_ ABSL_GUARDED_BY(mu_) = 0;  // Calls that change rows, or wait until nobody reads them.
  bool all_in_ ABSL_GUARDED_BY(mu_) = false;    // All parts of step applied_ have been taken out of pushes_.
  // Calls that read rows as of applied_, and ahead as of the next step.
  std::array<uint32_t, 2> reading_ ABSL_GUARDED_BY(mu_) = {};
  double apply_seconds_ ABSL_GUARDED_BY(mu_) = 0;  // Spent on step applied_ by all calls.
  absl::Status ended_ ABSL_GUARDED_BY(mu_);        // Why no call is served any more; OK: they are.
  PushAccumulator pushes_ ABSL_GUARDED_BY(mu_);    // For step applied_.
  // In a job with prefetch, of the steps applied_ and applied_ + 1. Shared with calls under way.
  std::shared_ptr<StepPulls> pulls_[2] ABSL_GUARDED_BY(mu_);
  CallMemory::Hold pushed_keys_memory_ ABSL_GUARDED_BY(mu_);
  WaitingPulls waiting_ ABSL_GUARDED_BY(mu_);

  TableStats decisions_;  // Counted in the metrics already. Of who finishes a step.

  absl::Mutex stats_mu_;
  int saving_ ABSL_GUARDED_BY(stats_mu_) = 0;
  TableStats stats_ ABSL_GUARDED_BY(stats_mu_);

  // Tells long work to stop. Relaxed would do: it is only looked at now and then.
  std::atomic<bool> stop_{false};
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_JOB_H_
