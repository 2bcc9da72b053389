#include "worker/train_loop.h"

#include <algorithm>
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
  // Books seconds that were measured elsewhere; the next mark begins now.
  void Add(StepPart part, double seconds) {
    seconds_[static_cast<size_t>(part)] += seconds;
    last_ = absl::GetCurrentTimeNanos();
  }
  const std::array<double, kStepParts>& seconds() const { return seconds_; }

 private:
  int64_t last_;
  std::array<double, kStepParts> seconds_{};
};

TrainLoop::TrainLoop(const Parts& parts)
    : parts_(parts),
      batch_model_(parts.layout, parts.model, parts.collective->size() == 1 ? parts.config->batch_size() / 2 : 0),
      pull_(parts.client),
      push_(parts.client) {}

absl::Status TrainLoop::Start() {
  RETURN_IF_ERROR(FetchNext());
  PullNext();
  return absl::OkStatus();
}

absl::StatusOr<TrainLoop::StepResult> TrainLoop::Step() {
  std::unique_ptr<PreparedBatch> now = std::move(next_);
  const Batch& batch = now->batch;
  const double factor = LearningRateFactor(parts_.config->schedule(), batch.step);
  Stopwatch watch;

  RETURN_IF_ERROR(pull_.Finish());
  watch.Mark(StepPart::kWait);
  const double pulled_bytes = static_cast<double>(pull_.bytes());
  // All servers have applied the step before: the rows of the next one that this one does not touch may come while it
  // computes. A batch that is not ready is not waited for.
  bool asked = false;
  const auto ask_for_next = [&]() -> absl::Status {
    RETURN_IF_ERROR(FetchNext());
    watch.Mark(StepPart::kLoad);
    PullNext();
    watch.Mark(StepPart::kPull);
    asked = true;
    return absl::OkStatus();
  };
  if (parts_.config->prefetch() && parts_.prefetcher->HasNext()) RETURN_IF_ERROR(ask_for_next());

  const BatchModel::Result result_of_batch = batch_model_.ForwardBackward(*now);
  watch.Add(StepPart::kForward, result_of_batch.forward_seconds);
  watch.Add(StepPart::kBackward, result_of_batch.backward_seconds);
  double loss_sum = result_of_batch.loss_sum;
  if (!std::isfinite(loss_sum)) {
    return absl::InvalidArgumentError(absl::StrCat("step ", batch.step, ": the loss is ", loss_sum,
                                                   ": training has diverged; lower the learning rates"));
  }

  // Under way while the dense part is reduced and updated, as is the next batch's pull: the servers answer what is left
  // of it once every worker's push is in.
  if (asked && next_ != nullptr) pull_.AskForPending();
  push_.Start({.step = batch.step, .samples = batch.rows, .learning_rate_factor = factor}, now->partition,
              result_of_batch.row_gradients);
  watch.Mark(StepPart::kPush);
  if (!asked) RETURN_IF_ERROR(ask_for_next());

  uint64_t samples = batch.rows;
  ASSIGN_OR_RETURN(const std::span<const float> gradients, ReduceOverWorkers(&loss_sum, &samples));
  watch.Mark(StepPart::kAllReduce);
  if (samples > 0) {
    parts_.optimizer->Step(parts_.model->weights(), gradients,
                           {.gradient_scale = 1.0 / static_cast<double>(samples), .learning_rate_factor = factor});
  }
  watch.Mark(StepPart::kOptimizer);

  RETURN_IF_ERROR(push_.Finish());
  watch.Mark(StepPart::kWait);

  const StepResult result = {.step = batch.step,
                             .samples = samples,
                             .rows_read = batch.global_rows,
                             .loss_sum = loss_sum,
                             .epoch = batch.epoch,
                             .rows_in_epoch = batch.rows_in_epoch,
                             .last_in_epoch = batch.last_in_epoch};
  const WorkerMetrics& metrics = *parts_.metrics;
  for (size_t part = 0; part < kStepParts; ++part) {
    seconds_[part] += watch.seconds()[part];
    metrics.step_seconds[part].Observe(watch.seconds()[part]);
  }
  metrics.steps.Increment();
  metrics.samples.Add(batch.rows);
  metrics.rows_read.Add(static_cast<double>(batch.rows_read));
  metrics.rows_skipped.Add(static_cast<double>(batch.rows_read - batch.rows));
  metrics.rows_pulled.Add(static_cast<double>(now->partition.rows()));
  metrics.rows_pushed.Add(static_cast<double>(now->partition.rows()));
  metrics.pull_bytes.Add(pulled_bytes);
  metrics.push_bytes.Add(static_cast<double>(push_.bytes()));
  metrics.saturated_gradients.Add(static_cast<double>(push_.saturated()));
  if (samples > 0) metrics.loss.Set(loss_sum / static_cast<double>(samples));
  parts_.prefetcher->Recycle(std::move(now));
  return result;
}

absl::Status TrainLoop::FetchNext() {
  ASSIGN_OR_RETURN(next_, parts_.prefetcher->Next());
  if (next_ != nullptr && next_->batch.step >= parts_.steps_end) next_ = nullptr;
  return absl::OkStatus();
}

void TrainLoop::PullNext() {
  if (next_ == nullptr) return;
  pull_.Start({.step = next_->batch.step, .create = true, .ahead = parts_.config->prefetch()}, &next_->partition,
              next_->rows);
}

absl::StatusOr<std::span<const float>> TrainLoop::ReduceOverWorkers(double* loss_sum, uint64_t* samples) {
  const std::span<const float> own = parts_.model->gradients();
  if (parts_.collective->size() == 1) return own;
  const size_t n = own.size();
  reduced_.resize(n + 3);
  std::copy(own.begin(), own.end(), reduced_.begin());
  // The loss as a float and what that leaves out; the samples are exact, since no step has more than 2^24.
  reduced_[n] = static_cast<float>(*loss_sum);
  reduced_[n + 1] = static_cast<float>(*loss_sum - static_cast<double>(reduced_[n]));
  reduced_[n + 2] = static_cast<float>(*samples);
  RETURN_IF_ERROR(Annotate(parts_.collective->AllReduceSum(std::span<float>(reduced_)), "reducing the gradients"));
  *loss_sum = static_cast<double>(reduced_[n]) + static_cast<double>(reduced_[n + 1]);
  *samples = static_cast<uint64_t>(reduced_[n + 2]);
  return std::span<const float>(reduced_.data(), n);
}

}  // namespace sparrow
