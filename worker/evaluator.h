#ifndef SPARROW_WORKER_EVALUATOR_H_
#define SPARROW_WORKER_EVALUATOR_H_

// Evaluation on the test set: every row once over all workers, exact metrics, and no change to any table.

#include <memory>

#include "absl/status/statusor.h"
#include "dense/collective.h"
#include "sparrow/v1/coordinator.pb.h"
#include "worker/batch_reader.h"
#include "worker/batch_trainer.h"
#include "worker/job_layout.h"
#include "worker/metrics.h"
#include "worker/ps_client.h"
#include "worker/stop_signal.h"

namespace sparrow {

// Not thread-safe. Every worker of the job makes the same calls.
class Evaluator {
 public:
  // All outlive the evaluator.
  struct Parts {
    const JobLayout* layout;
    PsClient* client;
    BatchTrainer* trainer;
    const WorkerMetrics* metrics;
    StopSignal* stop;
  };
  // Opens the test set, so that a wrong one is found before training. `reader` has source data.test and one epoch.
  static absl::StatusOr<std::unique_ptr<Evaluator>> Create(const Parts& parts, const BatchReaderOptions& reader);

  // Evaluates the model after `step` steps. The result is whole on rank 0; elsewhere it has the step alone.
  // AUC is absent, with the reason, where it is not defined. Cancelled if stopped.
  absl::StatusOr<v1::EvalResult> Evaluate(uint64_t step, Collective* collective);

  const std::vector<std::string>& files() const { return files_; }

 private:
  Evaluator(const Parts& parts, const BatchReaderOptions& options, std::unique_ptr<BatchReader> reader);

  // Scores this worker's part of the test set.
  absl::Status Score(uint64_t step);
  // Brings the scores of all workers to rank 0, in bounded messages.
  absl::Status Gather(Collective* collective);

  const Parts parts_;
  const BatchReaderOptions reader_options_;
  std::unique_ptr<BatchReader> reader_;  // Opened for the next evaluation, or null.
  std::vector<std::string> files_;
  PsPull pull_;
  std::vector<float> logits_;  // [rows]
  std::vector<float> labels_;  // [rows]
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_EVALUATOR_H_
