#include "worker/training_record.h"

#include <algorithm>

#include "base/utf8.h"

namespace sparrow {

void TrainingRecord::AddSources(std::span<const std::string> files) {
  for (const std::string& file : files) {
    if (std::find(files_.begin(), files_.end(), file) != files_.end()) continue;
    files_.push_back(file);
    summary_.add_sources(AsUtf8(file));
  }
}

void TrainingRecord::Book(const Step& step) {
  if (step.epoch != epoch_of_loss_) {
    epoch_of_loss_ = step.epoch;
    epoch_loss_sum_ = 0;
    epoch_samples_ = 0;
  }
  epoch_loss_sum_ += step.loss_sum;
  epoch_samples_ += step.samples;
  if (epoch_samples_ > 0) summary_.set_train_loss(epoch_loss_sum_ / static_cast<double>(epoch_samples_));
  summary_.set_steps(step.step + 1);
  summary_.set_rows_read(summary_.rows_read() + step.rows_read);
  summary_.set_rows_trained(summary_.rows_trained() + step.samples);
  summary_.set_rows_skipped(summary_.rows_read() - summary_.rows_trained());
  summary_.set_steps_skipped(summary_.steps_skipped() + (step.skipped ? 1 : 0));

  if (step.samples > 0) {
    const double loss = step.loss_sum / static_cast<double>(step.samples);
    // A mean over the recent past whose weights fall by 2 % a step.
    ++smoothed_steps_;
    smoothed_loss_ += (loss - smoothed_loss_) * std::max(0.02, 1.0 / static_cast<double>(smoothed_steps_));
    if (step.step == 0 || (step.step + 1) % loss_every_steps_ == 0) {
      v1::LossPoint point;
      point.set_step(step.step);
      point.set_loss(loss);
      observer_->OnLoss(point);
    }
  }
  // The first steps of a run, which take longer, are soon forgotten.
  const double weight = std::max(0.1, 1.0 / static_cast<double>(++steps_timed_));
  for (size_t part = 0; part < kStepParts; ++part) {
    smoothed_seconds_[part] += (step.seconds[part] - smoothed_seconds_[part]) * weight;
  }
  v1::Progress progress;
  progress.set_step(step.step + 1);
  progress.set_steps_total(step.steps_total);
  progress.set_epoch(step.epoch);
  progress.set_rows_read(summary_.rows_read());
  progress.set_rows_trained(summary_.rows_trained());
  progress.set_rows_skipped(summary_.rows_skipped());
  progress.set_steps_skipped(summary_.steps_skipped());
  progress.set_loss(smoothed_loss_);
  progress.set_rows_are_tokens(summary_.rows_are_tokens());
  progress.set_checkpoint(summary_.checkpoint());
  if (step.gradient_norm > 0) progress.set_gradient_norm(step.gradient_norm);
  if (step.peak_samples_per_second > 0) progress.set_peak_samples_per_second(step.peak_samples_per_second);
  for (size_t part = 0; part < kStepParts; ++part) {
    if (smoothed_seconds_[part] > 0) (*progress.mutable_step_seconds())[kStepPartNames[part]] = smoothed_seconds_[part];
  }
  observer_->OnProgress(progress);
}

void TrainingRecord::BookTime(double seconds) {
  summary_.set_train_seconds(seconds);
  if (seconds > 0) summary_.set_samples_per_second(static_cast<double>(summary_.rows_trained()) / seconds);
}

}  // namespace sparrow
