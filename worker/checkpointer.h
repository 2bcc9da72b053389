#ifndef SPARROW_WORKER_CHECKPOINTER_H_
#define SPARROW_WORKER_CHECKPOINTER_H_

// When a run writes checkpoints (CheckpointConfig), what becomes of those that cannot be written, and what is told of
// them. Every worker has one, which knows when; rank 0's writes.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "dense/collective.h"
#include "worker/job_checkpoints.h"
#include "worker/metrics.h"
#include "worker/stop_signal.h"
#include "worker/trainer.h"

namespace sparrow {

// Not thread-safe.
class Checkpointer {
 public:
  // All outlive it. The summary is the run's: checkpoint, and the counts of checkpoints, are filled in.
  Checkpointer(const v1::Job& job, const std::string& job_id, const WorkerMetrics* metrics, v1::Summary* summary,
               const StopSignal* stop, const Clock* clock = Clock::Real());

  // Whether anything is ever to be written.
  bool wanted() const;
  // As JobCheckpoints::Prepare, on rank 0, before the first step.
  absl::Status Prepare(const std::string& root);
  JobCheckpoints* checkpoints() { return checkpoints_.get(); }  // Null before Prepare.

  // Every worker calls it after each step, with the number of steps done: whether all are to save now. Errors of the
  // collective, which it uses about once a second, if the interval is a time.
  absl::StatusOr<bool> IsDue(uint64_t step, Collective* collective);

  // On rank 0: writes a checkpoint, for which training has stood still since `stopped_at`. What goes wrong in `put` or
  // with the files is logged and counted, and no error; Cancelled: the run was stopped. REQUIRES: Prepare.
  absl::Status SaveOnTheWay(const DataCursor& cursor, absl::Time stopped_at, PutFiles put);
  // The same with every error returned.
  absl::Status Save(const DataCursor& cursor, absl::Time stopped_at, PutFiles put);

 private:
  const v1::Job& job_;
  const v1::CheckpointConfig& config_;
  const std::string job_id_;
  const WorkerMetrics& metrics_;
  v1::Summary* const summary_;
  const StopSignal& stop_;
  const Clock* const clock_;
  std::unique_ptr<JobCheckpoints> checkpoints_;

  uint64_t next_look_ = 0;  // Before this number of steps nobody looks at the time.
  // Of rank 0.
  absl::Time saved_at_;       // Or tried.
  absl::Time looked_at_;      // Or saved.
  uint64_t looked_step_ = 0;  // Steps done then; 0: not known.
  uint64_t look_steps_ = 1;   // From that look to the next.
};

// The checkpoint that the task goes on from, with whole files: all of them on rank 0, of others the dense one. Of a
// job's directory rank 0 takes the newest that is whole, and tells the others by the task's board. Errors as of
// OpenCheckpoint, CheckSameModel and VerifyCheckpoint. Cancelled: stopped.
absl::StatusOr<Checkpoint> OpenToResume(const TrainTask& task, const StopSignal& stop);

}  // namespace sparrow

#endif  // SPARROW_WORKER_CHECKPOINTER_H_
