#include "worker/checkpointer.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace sparrow {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kChoiceTimeout = absl::Hours(1);  // Rank 0 reads all files of one checkpoint or of several.
constexpr char kChoiceKey[] = "resume";

}  // namespace

Checkpointer::Checkpointer(const v1::Job& job, const std::string& job_id, const WorkerMetrics* metrics,
                           v1::Summary* summary, const StopSignal* stop, const Clock* clock)
    : job_(job),
      config_(job.checkpoint()),
      job_id_(job_id),
      metrics_(*metrics),
      summary_(summary),
      stop_(*stop),
      clock_(clock),
      saved_at_(clock->Now()),
      looked_at_(saved_at_) {}

bool Checkpointer::wanted() const {
  return config_.at_end() || config_.interval_case() != v1::CheckpointConfig::INTERVAL_NOT_SET;
}

absl::Status Checkpointer::Prepare(const std::string& root) {
  ASSIGN_OR_RETURN(checkpoints_, JobCheckpoints::Prepare(root, job_.name(), job_id_));
  return absl::OkStatus();
}

absl::StatusOr<bool> Checkpointer::IsDue(uint64_t step, Collective* collective) {
  if (config_.interval_case() == v1::CheckpointConfig::kEverySteps) return step % config_.every_steps() == 0;
  if (config_.interval_case() != v1::CheckpointConfig::kEverySeconds || step < next_look_) return false;
  // Clocks differ, so rank 0's decides, and says after how many steps all look again.
  std::string said;
  if (collective->rank() == 0) {
    const absl::Time now = clock_->Now();
    const absl::Duration every = absl::Seconds(config_.every_seconds());
    const bool due = now - saved_at_ >= every;
    if (looked_step_ > 0 && step > looked_step_ && now > looked_at_) {
      const absl::Duration until = std::min(kLookEvery, due ? every : saved_at_ + every - now);
      const double steps = absl::FDivDuration(until, now - looked_at_) * static_cast<double>(step - looked_step_);
      // The last steps may not be like the next ones.
      look_steps_ = std::clamp<uint64_t>(static_cast<uint64_t>(std::min(steps, 1e9)), 1, 2 * look_steps_);
    }
    looked_at_ = now;
    looked_step_ = step;
    said = absl::StrCat(due ? 1 : 0, " ", look_steps_);
  }
  const absl::StatusOr<std::vector<std::string>> all = collective->AllGather(said);
  RETURN_IF_ERROR(Annotate(all.status(), "asking rank 0 whether a checkpoint is due"));
  const std::vector<std::string> words = absl::StrSplit(all->front(), ' ');
  uint64_t due = 0, steps = 0;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &due) || !absl::SimpleAtoi(words[1], &steps)) {
    return absl::InternalError(
        absl::StrCat("rank 0 says \"", all->front(), "\" where it says whether a checkpoint is due"));
  }
  next_look_ = step + steps;
  return due != 0;
}

absl::Status Checkpointer::Save(const DataCursor& cursor, absl::Time stopped_at, PutFiles put) {
  absl::StatusOr<JobCheckpoints::Saved> saved = checkpoints_->Save(job_, cursor, config_.keep(), put);
  const absl::Time now = clock_->Now();
  const double seconds = absl::ToDoubleSeconds(now - stopped_at);
  saved_at_ = looked_at_ = now;
  looked_step_ = cursor.step;
  summary_->set_checkpoint_seconds(summary_->checkpoint_seconds() + seconds);
  if (!saved.ok()) {
    summary_->set_checkpoints_failed(summary_->checkpoints_failed() + 1);
    metrics_.checkpoints_failed.Increment();
    return saved.status();
  }
  const std::string directory = AsUtf8(saved->directory);
  if (summary_->checkpoint() == directory) return absl::OkStatus();  // The last one on the way is that of the end.
  summary_->set_checkpoint(directory);
  summary_->set_checkpoints(summary_->checkpoints() + 1);
  summary_->set_checkpoint_bytes(saved->bytes);
  metrics_.checkpoint_seconds.Observe(seconds);
  metrics_.checkpoint_bytes.Set(static_cast<double>(saved->bytes));
  metrics_.checkpoint_unix_seconds.Set(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  LOG(INFO) << job_id_ << ": checkpoint " << saved->directory << ", " << saved->bytes << " bytes, "
            << absl::FormatDuration(absl::Milliseconds(std::llround(seconds * 1e3)));
  return absl::OkStatus();
}

absl::Status Checkpointer::SaveOnTheWay(const DataCursor& cursor, absl::Time stopped_at, PutFiles put) {
  const absl::Status saved = Save(cursor, stopped_at, put);
  if (stop_.stopped()) return absl::CancelledError("training was stopped");
  if (saved.ok()) return saved;
  LOG(ERROR) << job_id_ << ": the checkpoint of step " << cursor.step << " in " << checkpoints_->directory()
             << " could not be written; training goes on, and the next one is written when it is due; "
             << (summary_->checkpoint().empty() ? "there is none yet"
                                                : absl::StrCat("the last one is ", summary_->checkpoint()))
             << ": " << saved.message();
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> OpenToResume(const TrainTask& task, const StopSignal& stop) {
  const bool first = task.task.rank() == 0;
  const auto stopped = [&stop] { return stop.stopped(); };
  const std::string& path = task.task.restore_from();
  if (!IsJobDirectory(task.checkpoint_root, path)) {
    ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(task.checkpoint_root, path));
    RETURN_IF_ERROR(CheckSameModel(checkpoint, task.task.job()));
    RETURN_IF_ERROR(VerifyCheckpoint(checkpoint, first ? CheckpointFiles::kAll : CheckpointFiles::kDense, stopped));
    return checkpoint;
  }
  CHECK(task.board != nullptr || task.task.workers() == 1);
  if (first) {
    absl::StatusOr<Checkpoint> newest = NewestCheckpoint(task.checkpoint_root, path, stopped);
    if (task.task.workers() > 1) {
      absl::StatusOr<std::string> relative = "";
      if (newest.ok()) relative = RelativeToRoot(task.checkpoint_root, newest->directory);
      RETURN_IF_ERROR(relative.status());
      RETURN_IF_ERROR(task.board->Put(kChoiceKey, *relative));
    }
    RETURN_IF_ERROR(newest.status());
    LOG(INFO) << task.task.job_id() << ": goes on from " << newest->directory;
    RETURN_IF_ERROR(CheckSameModel(*newest, task.task.job()));
    return newest;
  }
  const absl::StatusOr<std::string> choice = task.board->Get(kChoiceKey, kChoiceTimeout);
  RETURN_IF_ERROR(Annotate(choice.status(), "waiting until rank 0 has chosen a checkpoint"));
  if (choice->empty()) return absl::UnavailableError("rank 0 has found no checkpoint to go on from");
  ASSIGN_OR_RETURN(Checkpoint checkpoint, OpenCheckpoint(task.checkpoint_root, *choice));
  RETURN_IF_ERROR(CheckSameModel(checkpoint, task.task.job()));
  RETURN_IF_ERROR(VerifyCheckpoint(checkpoint, CheckpointFiles::kDense, stopped));
  return checkpoint;
}

}  // namespace sparrow
