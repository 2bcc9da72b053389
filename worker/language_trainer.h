#ifndef SPARROW_WORKER_LANGUAGE_TRAINER_H_
#define SPARROW_WORKER_LANGUAGE_TRAINER_H_

// The arithmetic of one worker's steps of a language model, on the device that its --device flag names. The loop around
// it (worker/language_training.h) knows no device.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "dense/collective.h"
#include "dense/dense_optimizer.h"
#include "dense/language_model.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// Bytes that one of `workers` holds to train so many sequences at a time. With P parameters and k states of the
// optimizer, on the CPU, in float32, with G gradients that a model with GRADIENTS has at hand in backward:
//   weights 4 P;  gradients 4 P, with GRADIENTS 4 min(P, P / workers + G);  optimizer 4 k P, else than NONE over
//   workers.
// On a GPU, where P are padded (dense/device_layout.h), with E gradients of embeddings and vectors and B in a bucket:
//   weights 4 P, and 2 P where products read 16 bits;  gradients 4 P, with GRADIENTS 4 (P / workers + E + 2 B);
//   optimizer 4 k P, else than NONE over workers.
struct LanguageMemory {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // dense/language_model.h: Gpt2FloatsCpu

  double total() const { return weights + gradients + optimizer + activations; }
};

// Not thread-safe. Errors are final.
class LanguageTrainer {
 public:
  virtual ~LanguageTrainer() = default;

  // As BatchTrainer::Join: every worker of the job calls it, once, before Train. Gradients are then summed over workers
  // while the last micro batch's backward goes on: by a thread beside it on CPUs (but with TrainConfig.GRADIENTS, where
  // backward waits), and by GPUs where each worker has one of its own and there is NCCL.
  // FailedPrecondition: LanguageTrainerParts.zero, and their GPUs cannot do so.
  virtual absl::Status Join(const Meeting& meeting) = 0;

  struct Step {
    uint64_t step = 0;
    uint64_t first_sequence = 0;  // Of the batch, among those of the step on all workers.
    uint64_t sequences = 0;       // Of the step, on all workers.
    uint64_t sequences_max = 0;   // Of the batch of the worker that has most of them in this step.
    double learning_rate_factor = 1;
  };
  struct Result {
    double loss_sum = 0;  // Of the targets' cross-entropies, over all workers, as `targets`.
    uint64_t targets = 0;
    double gradient_norm = 0;     // Of the mean's gradients, before clipping.
    bool refused = false;         // By LanguageTrainerParts.accept: nothing has changed.
    bool overflowed = false;      // The loss was scaled, and a gradient is not finite: nothing has changed.
    double forward_seconds = 0;   // With backward, where the two are one.
    double backward_seconds = 0;  // With the head, where its two passes go together.
    double reduce_seconds = 0;    // That backward does not hide.
    double update_seconds = 0;
    double bytes_sent = 0;  // Of gradients and weights, from this worker's GPU to others.
  };
  // This worker's part of a step, micro batch by micro batch; then gradients are summed over all workers, divided by
  // the targets of all, clipped and applied, the same on each. On CPUs each worker sums, and finds the norm of, its
  // slice of the gradients (dense/collective.h: EvenSlices). Then it has all slices before it updates all parameters,
  // or updates its slice and has all slices of those (TrainConfig.zero): to the bit the same, but for LAMB's ratios,
  // whose sums have another order, and for GRADIENTS with more than one micro batch, which sums over workers first. On
  // GPUs shares are those of dense/sharded_optimizer_gpu.h, and the norm may round otherwise. A batch without sequences
  // is legal; a step without any changes nothing. InvalidArgument: the loss or the norm is not finite; nothing has
  // changed. Cancelled: stopped, and no weight has changed. Errors of the collective.
  virtual absl::StatusOr<Result> Train(const Sequences& batch, const Step& step, Collective* collective) = 0;

  // What the loss is multiplied by from the next step on: a power of two, 1 at first. Results are those of the loss
  // itself. A device that computes in float32 needs no scale and takes none.
  virtual void SetLossScale(float scale) = 0;

  // The sum of cross-entropies of this worker's sequences alone, without dropout. Cancelled: stopped.
  virtual absl::StatusOr<double> Loss(const Sequences& batch) = 0;

  // Bytes of a GPU's memory that the trainer has taken; none where it takes the host's.
  virtual std::optional<LanguageMemory> GpuMemoryTaken() const { return std::nullopt; }

  // Operations a second that the device could do at its peak (dense/peak_flops.h). 0: not known.
  virtual double PeakFlops() const = 0;

  // Afterwards the model, or the optimizer, that the trainer was made with is as trained. All workers call both, in one
  // order. Errors of the collective.
  virtual absl::Status CopyWeights() = 0;
  virtual absl::Status CopyOptimizer() = 0;
  absl::Status CopyToModel() {
    absl::Status copied = CopyWeights();
    copied.Update(CopyOptimizer());
    return copied;
  }
};

// All outlive the trainer.
struct LanguageTrainerParts {
  LanguageModel* model = nullptr;
  DenseOptimizer* optimizer = nullptr;
  // Not NONE: on a CPU the optimizer is that of the worker's slice. A GPU holds its share alone, of the whole one.
  v1::TrainConfig::Zero zero = v1::TrainConfig::NONE;
  std::optional<double> clip_norm;  // TrainConfig.clip_norm.
  uint64_t micro_batch_size = 1;    // Sequences at a time, in training and otherwise. REQUIRES: > 0.
  // Asked of a step with targets before its update, with the mean loss and the norm of the mean's gradients, which are
  // the same on all workers, and may not be finite. False: it is not applied; an error ends it. Null: all are applied.
  std::function<absl::StatusOr<bool>(double loss, double gradient_norm)> accept = nullptr;
  // Asked before each micro batch, as a batch may take minutes; true ends it with Cancelled. Null: never.
  std::function<bool()> stop = nullptr;
};

std::unique_ptr<LanguageTrainer> MakeCpuLanguageTrainer(const LanguageTrainerParts& parts);

struct GpuLanguageTrainerOptions {
  int gpu = 0;                 // REQUIRES: below GpuCount().
  uint32_t rank = 0;           // Of this worker,
  uint32_t workers = 1;        // and how many the job has.
  int64_t bucket_bytes = 0;    // Of gradients that GPUs sum at a time, at least; 0: what has proved best.
  uint64_t windows_max = 1;    // Sequences of a batch, in training and in evaluation, all of the model's context.
  std::string plan_file = "";  // Where the fastest matrix products are noted (dense/linear_gpu.h); empty: nowhere.
};
// On a GPU, which becomes the calling thread's; the trainer is used on that thread. The job says model, optimizer,
// precision and what is computed again. parts.model and parts.optimizer are where it begins. All GPU memory but that of
// recorded graphs is taken here. REQUIRES: parts.optimizer is of the whole model. ResourceExhausted: memory of the GPU,
// with numbers. InvalidArgument: sizes that a GPU does not take. FailedPrecondition: this GPU, or cuBLASLt, cannot be
// used. Unimplemented: LAMB with parts.zero, or no CUDA in this build.
absl::StatusOr<std::unique_ptr<LanguageTrainer>> MakeGpuLanguageTrainer(const LanguageTrainerParts& parts,
                                                                        const v1::Job& job,
                                                                        const GpuLanguageTrainerOptions& options);

// InvalidArgument: the mean loss or the norm of a step is not finite, with both.
absl::Status DivergedError(uint64_t step, double loss, double gradient_norm);

// On the CPU. REQUIRES: job_check.h has passed the job.
LanguageMemory LanguageMemoryCpu(const v1::Job& job, uint32_t workers, uint64_t micro_batch_size);

}  // namespace sparrow

#endif  // SPARROW_WORKER_LANGUAGE_TRAINER_H_
