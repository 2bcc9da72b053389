#ifndef SPARROW_WORKER_TRAINING_RUN_H_
#define SPARROW_WORKER_TRAINING_RUN_H_

#include <memory>

#include "absl/status/status.h"
#include "sparrow/v1/coordinator.pb.h"
#include "worker/trainer.h"

namespace sparrow {

// One worker's part of one job, of whatever kind: what RunTraining (worker/trainer.h) runs.
class TrainingRun {
 public:
  virtual ~TrainingRun() = default;
  virtual absl::Status Run() = 0;
  virtual v1::Summary TakeSummary() = 0;  // REQUIRES: Run has succeeded.
};

// Of a language model (model.gpt2). `metrics`, `observer` and `stop` outlive it.
std::unique_ptr<TrainingRun> MakeLanguageTraining(TrainTask task, const WorkerMetrics& metrics, TrainObserver* observer,
                                                  StopSignal* stop);

}  // namespace sparrow

#endif  // SPARROW_WORKER_TRAINING_RUN_H_
