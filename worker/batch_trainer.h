#ifndef SPARROW_WORKER_BATCH_TRAINER_H_
#define SPARROW_WORKER_BATCH_TRAINER_H_

// The arithmetic of one worker's steps, on the device that its --device flag names: rows and batch in, row gradients
// and a changed dense model out. The loop around it (worker/train_loop.h) knows no device.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "dense/collective.h"
#include "dense/dense_optimizer.h"
#include "dense/model.h"
#include "sparrow/v1/job.pb.h"
#include "worker/hot_replica.h"
#include "worker/hot_row_store.h"
#include "worker/job_layout.h"
#include "worker/prepared_batch.h"

namespace sparrow {

// Not thread-safe. Errors are final: ResourceExhausted (memory of the device) and those of the collective.
class BatchTrainer {
 public:
  virtual ~BatchTrainer() = default;

  // Whether a device computes beside the caller's thread, and Load and Start copy to it. Else these take no time that
  // counts, and Finish computes.
  virtual bool computes_elsewhere() const { return false; }

  // The logits of a batch, for evaluation; valid until the next call. REQUIRES: prepared.rows are filled.
  virtual absl::StatusOr<std::span<const float>> Forward(const PreparedBatch& prepared) = 0;

  // Takes the inputs of the next step's batch, but not its rows, so that a GPU has them when the step begins. May be
  // called as soon as the present step has been started.
  virtual absl::Status Load(const PreparedBatch& prepared) = 0;

  // Forward and backward of the batch that was loaded last. A GPU goes about it while the caller does something else;
  // where the trainer holds the rows (MakeHotRowStore), it goes on to the end of the step: rows and dense part are
  // updated, unless the loss is not finite or gradients overflow. REQUIRES: prepared.rows are filled; prepared stays as
  // it is until Finish.
  virtual absl::Status Start(const PreparedBatch& prepared, double learning_rate_factor) = 0;

  struct Result {
    double loss_sum = 0;  // Of the samples' losses (binary cross-entropy).
    // Of prepared.partition.keys(): a span for each table, [unique, dim], sums over samples.
    std::span<const std::span<const float>> row_gradients;
    double h2d_seconds = 0;  // Copies to the device; 0 on the CPU.
    double forward_seconds = 0;
    double backward_seconds = 0;
    double optimizer_seconds = 0;  // Of what Start goes on to.
    // The loss was scaled, and a gradient is not finite. (Without scaling, whoever updates rows says so.)
    bool overflowed = false;
  };
  // What came of it. A loss that is not finite, or an overflow, makes the other results meaningless. They are valid
  // until the next Start. The dense gradients stay here, for UpdateDense. InvalidArgument: the gradients of rows that
  // were to be updated are not finite; these rows are as they were, and no other step may follow. REQUIRES: Start.
  virtual absl::StatusOr<Result> Finish() = 0;

  // What the loss is multiplied by from the next Start on: a power of two, 1 at first. Results and updates
  // are those of the loss itself, but for what rounding and overflow do to them. A device that computes in float32
  // needs no scale and takes none.
  virtual void SetLossScale(float scale) = 0;

  // Every worker of the job calls it, once, before Start. Where each has a GPU of its own, and there is
  // NCCL, their GPUs sum the dense gradients from then on, while backward goes on. All outlive the trainer's last
  // Reduce; the board outlives the trainer. FailedPrecondition: the workers would sum different things.
  virtual absl::Status Join(const Meeting& meeting) = 0;

  // Sums over all workers: the dense gradients of the last Finish, and what is passed here.
  struct Sums {
    double loss = 0;
    uint64_t samples = 0;    // Below 2^24.
    uint64_t overflows = 0;  // Workers with Result.overflowed.
    // Left by Reduce where GPUs sum: what that took beyond backward.
    std::optional<double> exposed_seconds = std::nullopt;
  };
  virtual absl::Status Reduce(Collective* collective, Sums* sums) = 0;

  // One step of the dense optimizer with the reduced gradients, divided by `samples`; nothing if Start has gone on to
  // it. REQUIRES: samples > 0.
  virtual absl::Status UpdateDense(uint64_t samples, double learning_rate_factor) = 0;

  // Where rows lie that the worker, a lone one, holds itself; from now on training batches take theirs from there, and
  // rows there get their gradients by HotRowStore::Update or already in Start. shares and tables outlive it; it ends
  // before the trainer. ResourceExhausted.
  virtual absl::StatusOr<std::unique_ptr<HotRowStore>> MakeHotRowStore(std::span<const HotRowShare> shares,
                                                                       std::span<const TableSpec> tables) = 0;

  // The same for one of several workers, which all hold the same rows. Where GPUs sum, they lie in GPU memory. After
  // Join; every worker of the job calls it.
  virtual absl::StatusOr<std::unique_ptr<HotReplica>> MakeHotReplica(std::span<const HotRowShare> shares,
                                                                     std::span<const TableSpec> tables) = 0;

  // Afterwards the model and the optimizer that the trainer was made with have the weights and the state as trained.
  virtual absl::Status CopyToModel() = 0;
};

// All outlive the trainer.
struct BatchTrainerParts {
  const JobLayout* layout = nullptr;
  Model* model = nullptr;
  DenseOptimizer* optimizer = nullptr;
  std::optional<double> clip_norm;  // TrainConfig.clip_norm.
};

// `cut`: see BatchModel.
std::unique_ptr<BatchTrainer> MakeCpuBatchTrainer(const BatchTrainerParts& parts, uint64_t cut);

struct GpuTrainerOptions {
  int gpu = 0;            // REQUIRES: below GpuCount().
  int64_t rows_max = 0;   // Of a batch, in training and in evaluation.
  int64_t rows_full = 0;  // Of a training batch that is full: computed as it is, others may be padded.
  std::string plan_file;  // Where the fastest matrix products are noted (dense/linear_gpu.h); empty: nowhere.
};
// On a GPU, which becomes the calling thread's; the trainer is used on that thread. The job says model, optimizer and
// precision. parts.model and parts.optimizer are where it begins. ResourceExhausted: memory of the GPU, with numbers.
// Unimplemented: no CUDA in this build.
absl::StatusOr<std::unique_ptr<BatchTrainer>> MakeGpuBatchTrainer(const BatchTrainerParts& parts, const v1::Job& job,
                                                                  const GpuTrainerOptions& options);

}  // namespace sparrow

#endif  // SPARROW_WORKER_BATCH_TRAINER_H_
