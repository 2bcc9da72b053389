#include "worker/train_loop.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "dense/schedule.h"

namespace sparrow {

// Books the time since its last mark.
class TrainLoop::Stopwatch {
 public:
  Stopwatch() : last_(absl::GetCurrentTimeNanos()) {}
  void Mark(StepPart part) {
    const int64_t now = absl::GetCurrentTimeNanos();
    seconds_[static_cast<size_t>(part)] += static_cast<double>(now - last_) * 1e-9;
    last_ = now;
  }
  // The same, over parts that were measured elsewhere, in proportion: a GPU computes beside the thread, which books
  // only its own time.
  void MarkAll(const BatchTrainer::Result& measured) {
    const std::pair<StepPart, double> parts[] = {{StepPart::kH2d, measured.h2d_seconds},
                                                 {StepPart::kForward, measured.forward_seconds},
                                                 {StepPart::kBackward, measured.backward_seconds},
                                                 {StepPart::kOptimizer, measured.optimizer_seconds}};
    double sum = 0;
    for (const auto& [part, seconds] : parts) sum += seconds;
    const int64_t before = last_;
    Mark(StepPart::kBackward);
    if (sum <= 0) return;
    const double elapsed = static_cast<double>(last_ - before) * 1e-9;
    seconds_[static_cast<size_t>(StepPart::kBackward)] -= elapsed;
    for (const auto& [part, seconds] : parts) seconds_[static_cast<size_t>(part)] += elapsed * seconds / sum;
  }
  const std::array<double, kStepParts>& seconds() const { return seconds_; }

 private:
  int64_t last_;
  std::array<double, kStepParts> seconds_{};
};

TrainLoop::TrainLoop(const Parts& parts, std::unique_ptr<StepRows> rows) : parts_(parts), rows_(std::move(rows)) {}

absl::Status TrainLoop::Start() {
  RETURN_IF_ERROR(FetchNext());
  if (next_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(parts_.trainer->Load(*next_));
  return rows_->StartPull(next_.get());
}

absl::StatusOr<TrainLoop::StepResult> TrainLoop::Step() {
  std::unique_ptr<PreparedBatch> now = std::move(next_);
  const Batch& batch = now->batch;
  const double factor = LearningRateFactor(parts_.config->schedule(), batch.step);
  Stopwatch watch;
  // On the CPU there is nothing to copy.
  const auto mark_copies = [&] {
    if (parts_.trainer->computes_elsewhere()) watch.Mark(StepPart::kH2d);
  };

  RETURN_IF_ERROR(rows_->FinishPull(now.get()));
  watch.Mark(StepPart::kWait);
  if (parts_.scaler != nullptr) parts_.trainer->SetLossScale(static_cast<float>(parts_.scaler->state().scale));
  RETURN_IF_ERROR(parts_.trainer->Start(*now, factor));
  mark_copies();
  // A GPU computes from here on, beside what this thread and others do for the rows.
  RETURN_IF_ERROR(rows_->PushEarly(*now, factor));
  watch.Mark(StepPart::kPush);
  // All servers have applied the step before: the rows of the next one that this one does not touch may come while it
  // computes. A batch that is not ready is not waited for.
  bool asked = false;
  const auto ask_for_next = [&]() -> absl::Status {
    RETURN_IF_ERROR(FetchNext());
    watch.Mark(StepPart::kLoad);
    asked = true;
    if (next_ == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(parts_.trainer->Load(*next_));
    mark_copies();
    RETURN_IF_ERROR(rows_->StartPull(next_.get()));
    watch.Mark(StepPart::kPull);
    return absl::OkStatus();
  };
  if (parts_.config->prefetch() && parts_.prefetcher->HasNext()) {
    RETURN_IF_ERROR(ask_for_next());
    if (next_ != nullptr && parts_.trainer->computes_elsewhere()) RETURN_IF_ERROR(rows_->BringRows());
    watch.Mark(StepPart::kWait);
  }

  ASSIGN_OR_RETURN(const BatchTrainer::Result result_of_batch, parts_.trainer->Finish());
  watch.MarkAll(result_of_batch);
  BatchTrainer::Sums sums{.loss = result_of_batch.loss_sum,
                          .samples = batch.rows,
                          .overflows = result_of_batch.overflowed ? uint64_t{1} : 0};
  if (!std::isfinite(sums.loss)) {
    return absl::InvalidArgumentError(absl::StrCat("step ", batch.step, ": the loss is ", sums.loss,
                                                   ": training has diverged; lower the learning rates"));
  }

  const auto reduce = [&]() -> absl::Status {
    RETURN_IF_ERROR(parts_.trainer->Reduce(parts_.collective, &sums));
    watch.Mark(StepPart::kAllReduce);
    return absl::OkStatus();
  };
  // A scaled step is pushed only once no worker's gradients are known to have overflowed.
  bool skip = false;
  if (parts_.scaler != nullptr) {
    RETURN_IF_ERROR(reduce());
    ASSIGN_OR_RETURN(skip, UpdateScale(batch.step, sums));
  }

  // Under way while the dense part is reduced and updated, as is the next batch's pull: the servers answer what is left
  // of it once every worker's push is in.
  if (asked && next_ != nullptr) RETURN_IF_ERROR(rows_->Continue());
  RETURN_IF_ERROR(skip ? rows_->StartSkip(*now) : rows_->StartPush(*now, result_of_batch.row_gradients, factor));
  watch.Mark(StepPart::kPush);
  if (!asked) RETURN_IF_ERROR(ask_for_next());

  if (parts_.scaler == nullptr) RETURN_IF_ERROR(reduce());
  if (sums.samples > 0 && !skip) RETURN_IF_ERROR(parts_.trainer->UpdateDense(sums.samples, factor));
  watch.Mark(StepPart::kOptimizer);

  RETURN_IF_ERROR(rows_->FinishPush());
  watch.Mark(StepPart::kWait);
  steps_ = batch.step + 1;

  const StepResult result = {.step = batch.step,
                             .samples = sums.samples,
                             .rows_read = batch.global_rows,
                             .loss_sum = sums.loss,
                             .skipped = skip,
                             .epoch = batch.epoch,
                             .rows_in_epoch = batch.rows_in_epoch,
                             .last_in_epoch = batch.last_in_epoch,
                             .seconds = watch.seconds()};
  const WorkerMetrics& metrics = *parts_.metrics;
  for (size_t part = 0; part < kStepParts; ++part) {
    seconds_[part] += watch.seconds()[part];
    metrics.step_seconds[part].Observe(watch.seconds()[part]);
  }
  if (sums.exposed_seconds.has_value()) metrics.exposed_allreduce_seconds.Observe(*sums.exposed_seconds);
  metrics.steps.Increment();
  metrics.samples.Add(batch.rows);
  metrics.rows_read.Add(static_cast<double>(batch.rows_read));
  metrics.rows_skipped.Add(static_cast<double>(batch.rows_read - batch.rows));
  if (sums.samples > 0) metrics.loss.Set(sums.loss / static_cast<double>(sums.samples));
  parts_.prefetcher->Recycle(std::move(now));
  return result;
}

absl::StatusOr<bool> TrainLoop::UpdateScale(uint64_t step, const BatchTrainer::Sums& sums) {
  const bool overflowed = sums.overflows > 0;
  const uint32_t scale = parts_.scaler->state().scale;
  if (sums.samples > 0 && !parts_.scaler->Update(overflowed)) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step, ": gradients are not finite, though the loss scale is ", scale,
                     ", the smallest (train.loss_scale.min): training has diverged or float16 has not the range; lower "
                     "the learning rates, or set train.precision to BFLOAT16"));
  }
  parts_.metrics->loss_scale.Set(parts_.scaler->state().scale);
  if (overflowed) parts_.metrics->steps_skipped.Increment();
  return overflowed;
}

absl::Status TrainLoop::FetchNext() {
  ASSIGN_OR_RETURN(next_, parts_.prefetcher->Next());
  if (next_ != nullptr && next_->batch.step >= parts_.steps_end) next_ = nullptr;
  return absl::OkStatus();
}

absl::Status TrainLoop::WriteBack() {
  if (steps_ == 0) return absl::OkStatus();
  return rows_->WriteBack(steps_);
}

}  // namespace sparrow
