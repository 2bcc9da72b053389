#ifndef SPARROW_WORKER_BATCH_TRAINER_H_
#define SPARROW_WORKER_BATCH_TRAINER_H_

// The arithmetic of one worker's steps, on the device that its --device flag names: rows and batch in, row gradients
// and a changed dense model out. The loop around it (worker/train_loop.h) knows no device.

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "dense/collective.h"
#include "dense/dense_optimizer.h"
#include "dense/model.h"
#include "worker/job_layout.h"
#include "worker/prepared_batch.h"

namespace sparrow {

// Not thread-safe. Errors are final: ResourceExhausted (memory of the device) and those of the collective.
class BatchTrainer {
 public:
  virtual ~BatchTrainer() = default;

  // The logits of a batch, for evaluation; valid until the next call. REQUIRES: prepared.rows are filled.
  virtual absl::StatusOr<std::span<const float>> Forward(const PreparedBatch& prepared) = 0;

  struct Result {
    double loss_sum = 0;  // Of the samples' losses (binary cross-entropy).
    // Of prepared.partition.keys(): a span for each table, [unique, dim], sums over samples.
    std::span<const std::span<const float>> row_gradients;
    double forward_seconds = 0;
    double backward_seconds = 0;
  };
  // Forward and backward. A loss that is not finite makes the other results meaningless. They are valid until the next
  // call. The dense gradients stay here, for UpdateDense. REQUIRES: prepared.rows are filled.
  virtual absl::StatusOr<Result> ForwardBackward(const PreparedBatch& prepared) = 0;

  // Sums over all workers: the dense gradients of the last ForwardBackward, and what is passed here.
  struct Sums {
    double loss = 0;
    uint64_t samples = 0;  // Below 2^24.
  };
  virtual absl::Status Reduce(Collective* collective, Sums* sums) = 0;

  // One step of the dense optimizer with the reduced gradients, divided by `samples`. REQUIRES: samples > 0.
  virtual absl::Status UpdateDense(uint64_t samples, double learning_rate_factor) = 0;

  // Afterwards the model and the optimizer that the trainer was made with have the weights and the state as trained.
  virtual absl::Status CopyToModel() = 0;
};

// All outlive the trainer.
struct BatchTrainerParts {
  const JobLayout* layout = nullptr;
  Model* model = nullptr;
  DenseOptimizer* optimizer = nullptr;
};

// `cut`: see BatchModel.
std::unique_ptr<BatchTrainer> MakeCpuBatchTrainer(const BatchTrainerParts& parts, uint64_t cut);

}  // namespace sparrow

#endif  // SPARROW_WORKER_BATCH_TRAINER_H_
