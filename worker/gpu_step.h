#ifndef SPARROW_WORKER_GPU_STEP_H_
#define SPARROW_WORKER_GPU_STEP_H_

// What a GPU does in a training step: from where a batch's rows lie to the gradients or, where this worker holds the
// rows, to new rows and weights. It is queued as a whole, a CUDA graph for each of the two inputs and each number of
// rows, and nobody waits inside:
//
//   the model's stream                            beside it
//   rows are pooled, unless the model gathers     look-ups are grouped by row
//     one-hot ones by itself; forward, loss
//   backward as far as the pooled vectors         the gate looks at the loss (dense/step_gate.h)
//   the rest of backward                          rows are updated, or their gradients summed
//   dense optimizer, where the rows are held
//
// Where the loss is scaled, no row is updated before all gradients are there: one that overflows leaves everything as
// it was. What changes from step to step lies in GPU memory.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/cuda/graph.h"
#include "base/cuda/mirror.h"
#include "base/cuda/stream.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/gradient_norm.h"
#include "dense/gradient_reducer.h"
#include "dense/grid_sum.h"
#include "dense/model_gpu.h"
#include "embedding/sparse_update_gpu.h"
#include "worker/batch_trainer.h"
#include "worker/device_batch.h"

namespace sparrow {

// Not thread-safe.
class GpuStep {
 public:
  struct Parts {  // All outlive it.
    ModelGpu* model;
    DenseOptimizerGpu* optimizer;
    Precision precision;
    std::optional<double> clip_norm;
    float* logits;         // [rows_max] in GPU memory.
    const Stream* stream;  // The model's.
  };
  // ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<GpuStep>> Make(const Parts& parts);

  // Backward goes through it, and its sums begin, from now on. Outlives all Queue.
  void set_reducer(GradientReducer* reducer) { reducer_ = reducer; }
  // The sums begin with StartSums, after Queue, and not by themselves.
  void set_sums_late() { sums_late_ = true; }
  absl::Status StartSums();
  // When the gradients of the rows are summed that are not held, of the step queued last.
  const Event& rows_summed() const { return rows_summed_; }
  // This worker holds the rows of all batches to come.
  void HoldRows(std::vector<SparseOptimizer> optimizers /*[groups]*/);
  bool holds_rows() const { return holds_rows_; }
  // What the loss is multiplied by from the next step on. REQUIRES: no step is in work.
  void SetLossScale(float scale);
  bool scales_loss() const { return parts_.precision == Precision::kFloat16; }
  // What the dense gradients are multiplied by, which the caller takes out of them.
  float TakeGradientsScale() { return std::exchange(gradients_scale_, 1.0f); }

  // What the batch's data do not say.
  struct Now {
    uint64_t step = 0;
    uint64_t samples = 0;
    double learning_rate_factor = 0;
  };
  // Queues the step of the batch's input, whose rows are filled. Errors: no memory for graphs; those of the reducer.
  absl::Status Queue(DeviceBatch* batch, const Now& now);
  // Waits for it. All of the result but the gradients of rows, which are the batch's (DeviceBatch::Sums).
  // InvalidArgument: as BatchTrainer::Finish.
  absl::StatusOr<BatchTrainer::Result> Finish();
  // Queues the dense optimizer's step alone. REQUIRES: Finish; the rows are not held.
  void QueueDense(const Now& now);

 private:
  struct Control {  // What a step needs to know that its graphs were not recorded with.
    SparseStep rows;
    DenseStepOptions dense;
  };
  struct Outcome {  // What becomes of a step.
    double loss_sum;
    uint64_t refused_rows;  // That stay as they are because a gradient is not finite. Of rows that servers hold: they
                            // refuse such rows by name.
    uint64_t overflows;     // Gradients that are not finite, where the loss is scaled.
    GradientClip clip;
  };

  explicit GpuStep(const Parts& parts) : parts_(parts), stream_(*parts.stream) {}

  absl::Status Run(DeviceBatch* batch);
  // Recorded it loads nothing, so that no memory is looked for. Else nothing runs beside anything: products, which
  // choose by time then, and profiles have the GPU to themselves.
  absl::Status QueueWork(DeviceBatch* batch, bool recorded);
  void QueueRows(DeviceBatch* batch, const DeviceBatch::Input& input, const Stream& queue);
  void QueueDenseStep();
  void Gate(const uint64_t* not_finite, const Stream& queue);
  void LookForOverflow(const DeviceBatch::Input& input, const ModelGpu::Batch& batch);
  void LetFollow(const Stream& queue);
  void Await(const Stream& queue);
  void Mark(Event* mark);
  void SetControl(const Now& now);
  absl::Status CheckUpdate(const Outcome& outcome) const;

  // In GPU memory.
  Control* control() { return control_.device.data(); }
  Outcome* outcome() { return outcome_.device.data(); }

  const Parts parts_;
  const Stream& stream_;
  const Stream beside_;
  const Stream marks_;  // Where moments of the model's stream are noted, so that nothing there waits for that.
  GradientReducer* reducer_ = nullptr;
  bool sums_late_ = false;
  bool holds_rows_ = false;
  std::vector<SparseOptimizer> optimizers_;  // [groups] of rows that are held.
  float loss_scale_now_ = 1;                 // In loss_scale_,
  float gradients_scale_ = 1;  // and in the dense gradients, and those of rows that are held, as they are now.
  Now now_;                    // Of the step that was queued last.

  Mirror<Control> control_ = Mirror<Control>::Empty();  // [1], as all below
  Mirror<Outcome> outcome_ = Mirror<Outcome>::Empty();
  Mirror<float> loss_scale_ = Mirror<float>::Empty();
  Mirror<GridSums> norm_sums_ = Mirror<GridSums>::Empty();

  Event fork_, join_, gated_;  // Of the streams among each other.
  Event rows_summed_;
  Event begin_, loaded_, forward_, backward_, ended_;

  // Recorded steps, by input, number of rows, and whether they are one-hot. The first of a kind is not recorded: the
  // products choose how to compute then, and a kind that never comes again costs no graph.
  std::map<std::tuple<int, int64_t, bool>, std::optional<Graph>> graphs_;
  uint64_t generation_ = 0;  // Of the batch's memory, which they were recorded with.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_GPU_STEP_H_
