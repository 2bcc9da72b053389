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

// Not thread-safe. Errors are final.
class LanguageTrainer {
 public:
  virtual ~LanguageTrainer() = default;

  // As BatchTrainer::Join: every worker of the job calls it, once, before Train. Where each has a GPU of its own, and
  // there is NCCL, their GPUs sum the gradients, while the last micro batch's backward goes on.
  virtual absl::Status Join(const Meeting& meeting) = 0;

  struct Step {
    uint64_t step = 0;
    uint64_t first_sequence = 0;  // Of the batch, among those of the step on all workers.
    uint64_t sequences = 0;       // Of the step, on all workers.
    double learning_rate_factor = 1;
  };
  struct Result {
    double loss_sum = 0;  // Of the targets' cross-entropies, over all workers, as `targets`.
    uint64_t targets = 0;
    double gradient_norm = 0;    // Of the mean's gradients, before clipping.
    bool overflowed = false;     // The loss was scaled, and a gradient is not finite: nothing has changed.
    double forward_seconds = 0;  // With backward, where the two are one.
    double backward_seconds = 0;
    double reduce_seconds = 0;
    double update_seconds = 0;
  };
  // This worker's part of a step, micro batch by micro batch; then gradients are summed over all workers, divided by
  // the targets of all, clipped and applied, the same on each. A batch without sequences is legal; a step without any
  // changes nothing. InvalidArgument: the loss or the norm is not finite; nothing has changed. Cancelled: stopped
  // before anything was reduced. Errors of the collective.
  virtual absl::StatusOr<Result> Train(const Sequences& batch, const Step& step, Collective* collective) = 0;

  // What the loss is multiplied by from the next step on: a power of two, 1 at first. Results are those of the loss
  // itself. A device that computes in float32 needs no scale and takes none.
  virtual void SetLossScale(float scale) = 0;

  // The sum of cross-entropies of this worker's sequences alone, without dropout. Cancelled: stopped.
  virtual absl::StatusOr<double> Loss(const Sequences& batch) = 0;

  // Operations a second that the device could do at its peak (dense/peak_flops.h). 0: not known.
  virtual double PeakFlops() const = 0;

  // Afterwards the model and the optimizer that the trainer was made with are as trained.
  virtual absl::Status CopyToModel() = 0;
};

// All outlive the trainer.
struct LanguageTrainerParts {
  LanguageModel* model = nullptr;
  DenseOptimizer* optimizer = nullptr;
  std::optional<double> clip_norm;  // TrainConfig.clip_norm.
  uint64_t micro_batch_size = 1;    // Sequences at a time, in training and otherwise. REQUIRES: > 0.
  // Asked before each micro batch, as a batch may take minutes; true ends it with Cancelled. Null: never.
  std::function<bool()> stop = nullptr;
};

std::unique_ptr<LanguageTrainer> MakeCpuLanguageTrainer(const LanguageTrainerParts& parts);

struct GpuLanguageTrainerOptions {
  int gpu = 0;                 // REQUIRES: below GpuCount().
  uint64_t windows_max = 1;    // Sequences of a batch, in training and in evaluation, all of the model's context.
  std::string plan_file = "";  // Where the fastest matrix products are noted (dense/linear_gpu.h); empty: nowhere.
};
// On a GPU, which becomes the calling thread's; the trainer is used on that thread. The job says model, optimizer,
// precision and what is computed again. parts.model and parts.optimizer are where it begins. All memory is taken here.
// ResourceExhausted: memory of the GPU, with numbers. InvalidArgument: what a GPU does not compute. Unimplemented: no
// CUDA in this build.
absl::StatusOr<std::unique_ptr<LanguageTrainer>> MakeGpuLanguageTrainer(const LanguageTrainerParts& parts,
                                                                        const v1::Job& job,
                                                                        const GpuLanguageTrainerOptions& options);

// InvalidArgument: the mean loss or the norm of a step is not finite, with both.
absl::Status DivergedError(uint64_t step, double loss, double gradient_norm);

}  // namespace sparrow

#endif  // SPARROW_WORKER_LANGUAGE_TRAINER_H_
