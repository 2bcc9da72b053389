#ifndef SPARROW_WORKER_TRAIN_LOOP_H_
#define SPARROW_WORKER_TRAIN_LOOP_H_

// One worker's synchronous training, step by step.

#include <array>
#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "dense/collective.h"
#include "dense/loss_scaler.h"
#include "worker/batch_trainer.h"
#include "worker/metrics.h"
#include "worker/prefetcher.h"
#include "worker/step_rows.h"

namespace sparrow {

// Not thread-safe. Every worker of the job makes the same calls.
class TrainLoop {
 public:
  // All outlive the loop.
  struct Parts {
    const v1::TrainConfig* config;
    Prefetcher* prefetcher;
    BatchTrainer* trainer;
    Collective* collective;
    const WorkerMetrics* metrics;
    LossScaler* scaler = nullptr;                               // Null: the loss is not scaled.
    uint64_t steps_end = std::numeric_limits<uint64_t>::max();  // The step before which training ends at the latest.
  };
  TrainLoop(const Parts& parts, std::unique_ptr<StepRows> rows);

  // Takes the first batch and asks for its rows.
  absl::Status Start();
  // Whether there is a step to do. REQUIRES: Start.
  bool more() const { return next_ != nullptr; }

  // What one step did, over all workers.
  struct StepResult {
    uint64_t step = 0;       // From 0.
    uint64_t samples = 0;    // Trained; 0 is legal: such a step changes nothing but counts.
    uint64_t rows_read = 0;  // Skipped rows included.
    double loss_sum = 0;     // Over the samples.
    bool skipped = false;    // A gradient overflowed, so that nothing has changed but the loss scale.
    // Where the data stands after it.
    uint64_t epoch = 0;
    uint64_t rows_in_epoch = 0;
    bool last_in_epoch = false;
    std::array<double, kStepParts> seconds{};  // Of this worker, by part.
  };
  // REQUIRES: more(). An error is final.
  absl::StatusOr<StepResult> Step();

  // Brings the servers' rows up to date with the steps done, so that they can be evaluated or saved.
  absl::Status WriteBack();

  // Seconds spent so far, by part.
  const std::array<double, kStepParts>& seconds() const { return seconds_; }

 private:
  class Stopwatch;

  absl::Status FetchNext();
  // Whether the step is to be skipped.
  absl::StatusOr<bool> UpdateScale(uint64_t step, const BatchTrainer::Sums& sums);

  const Parts parts_;
  std::unique_ptr<PreparedBatch> next_;  // Its pull is under way, into its rows: it outlives rows_.
  std::unique_ptr<StepRows> rows_;
  uint64_t steps_ = 0;  // Done, from the beginning of the job. 0: none by this loop.
  std::array<double, kStepParts> seconds_{};
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_TRAIN_LOOP_H_
