#ifndef SPARROW_WORKER_TRAINING_RECORD_H_
#define SPARROW_WORKER_TRAINING_RECORD_H_

// What a training run has done so far: the summary to be, and what is told on the way.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sparrow/v1/coordinator.pb.h"
#include "worker/metrics.h"
#include "worker/trainer.h"

namespace sparrow {

// Not thread-safe.
class TrainingRecord {
 public:
  // The observer outlives it. loss_every_steps: TrainConfig's.
  TrainingRecord(TrainObserver* observer, uint64_t loss_every_steps)
      : observer_(observer), loss_every_steps_(loss_every_steps) {}

  // Names files that are read, each once.
  void AddSources(std::span<const std::string> files);
  const std::vector<std::string>& files() const { return files_; }  // So named.

  struct Step {
    uint64_t step = 0;  // From 0.
    uint64_t epoch = 0;
    uint64_t steps_total = 0;  // 0: not known.
    uint64_t rows_read = 0;    // Of all workers, as the two below.
    uint64_t samples = 0;      // Rows trained.
    double loss_sum = 0;
    bool skipped = false;
    double gradient_norm = 0;            // 0: not known.
    double peak_samples_per_second = 0;  // The same.
    std::array<double, kStepParts> seconds{};
  };
  // Takes a step into the summary, and tells the observer.
  void Book(const Step& step);

  // `seconds` of training for `steps` steps of this run.
  void BookTime(double seconds);

  v1::Summary& summary() { return summary_; }

 private:
  TrainObserver* const observer_;
  const uint64_t loss_every_steps_;

  v1::Summary summary_;
  std::vector<std::string> files_;
  uint64_t epoch_of_loss_ = 0;
  double epoch_loss_sum_ = 0;
  uint64_t epoch_samples_ = 0;
  double smoothed_loss_ = 0;
  uint64_t smoothed_steps_ = 0;
  std::array<double, kStepParts> smoothed_seconds_{};
  uint64_t steps_timed_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_TRAINING_RECORD_H_
