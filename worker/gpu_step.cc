#include "worker/gpu_step.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
#include "base/cuda/operation.h"
#include "base/status_macros.h"
#include "dense/gradient_norm_gpu.h"
#include "dense/interaction_gpu.h"
#include "dense/loss_scale_gpu.h"
#include "dense/step_gate_gpu.h"
#include "worker/gpu_reserve.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<GpuStep>> GpuStep::Make(const Parts& parts) {
  std::unique_ptr<GpuStep> step(new GpuStep(parts));
  ASSIGN_OR_RETURN(step->control_, Mirror<Control>::Make(1, "what a step needs to know"));
  ASSIGN_OR_RETURN(step->outcome_, Mirror<Outcome>::Make(1, "what becomes of a step"));
  ASSIGN_OR_RETURN(step->loss_scale_, Mirror<float>::Make(1, "the loss scale"));
  ASSIGN_OR_RETURN(step->norm_sums_, Mirror<GridSums>::Make(1, "the sums of a norm"));
  step->norm_sums_.device.Fill(0, step->stream_);
  step->outcome_.device.Fill(0, step->stream_);
  *step->loss_scale_.host.data() = step->loss_scale_now_;
  step->loss_scale_.Upload(1, step->stream_);
  return step;
}

void GpuStep::HoldRows(std::vector<SparseOptimizer> optimizers) {
  holds_rows_ = true;
  optimizers_ = std::move(optimizers);
}

void GpuStep::SetLossScale(float scale) {
  if (scale == loss_scale_now_ || !scales_loss()) return;
  loss_scale_now_ = scale;
  *loss_scale_.host.data() = scale;
  loss_scale_.Upload(1, stream_);
}

absl::Status GpuStep::Queue(DeviceBatch* batch, const Now& now) {
  now_ = now;
  gradients_scale_ = loss_scale_now_;
  stream_.WaitFor(batch->input().loaded);
  begin_.Record(stream_);
  batch->UploadRows();
  if (holds_rows_) SetControl(now);
  loaded_.Record(stream_);
  RETURN_IF_ERROR(Run(batch));
  if (!sums_late_) RETURN_IF_ERROR(StartSums());
  if (!holds_rows_) {
    batch->FetchSums();
    backward_.Record(stream_);
  }
  outcome_.Fetch(1, stream_);
  ended_.Record(stream_);
  return absl::OkStatus();
}

absl::Status GpuStep::StartSums() {
  return reducer_ == nullptr ? absl::OkStatus() : Annotate(reducer_->Start(), "summing the gradients");
}

absl::Status GpuStep::Run(DeviceBatch* batch) {
  const DeviceBatch::Input& input = batch->input();
  if (generation_ != batch->generation()) {
    graphs_.clear();
    generation_ = batch->generation();
  }
  const auto [graph, first] = graphs_.try_emplace({input.number, input.rows, input.one_hot});
  // What a graph does has no operations.
  if (first || OperationListenerNow() != nullptr) return QueueWork(batch, /*recorded=*/false);
  if (!graph->second.has_value()) {
    const std::string what = absl::StrCat("a step of ", input.rows, " rows");
    RETURN_IF_ERROR(CheckGpuRoom(absl::StrCat("recording ", what)));
    graph->second = Graph::Record(stream_, [&] { return QueueWork(batch, /*recorded=*/true).ok(); });
    if (!graph->second.has_value()) return GpuIsOutOfMemory(absl::StrCat(what, " cannot be recorded"));
  }
  graph->second->Replay(stream_);
  return absl::OkStatus();
}

absl::Status GpuStep::QueueWork(DeviceBatch* batch, bool recorded) {
  const DeviceBatch::Input& input = batch->input();
  ModelGpu* const model = parts_.model;
  const auto look_for_room = [&](absl::string_view pass) {
    return recorded ? absl::OkStatus() : CheckGpuRoom(absl::StrCat(pass, " of ", input.rows, " rows"));
  };
  RETURN_IF_ERROR(look_for_room("a forward pass"));
  internal::FillDevice(&outcome()->refused_rows, 0, sizeof(uint64_t), stream_);
  if (scales_loss()) internal::FillDevice(&outcome()->overflows, 0, sizeof(uint64_t), stream_);

  LetFollow(beside_);
  for (size_t g = 0; g < batch->groups().size(); ++g) {
    DeviceBatch::Group& group = batch->groups()[g];
    GroupLookupsGpu(batch->SumBags(g, input), group.size, group.Workspace(), beside_);
  }
  if (!recorded) Await(beside_);

  ModelGpu::Batch now{.rows = input.rows,
                      .dense = input.dense.device.data(),
                      .labels = input.labels.device.data(),
                      .samples = input.samples.device.data(),
                      .loss_scale = loss_scale_.device.data(),
                      .logits = parts_.logits,
                      .loss_sum = &outcome()->loss_sum};
  GatheredVectors gathered;
  // One group has all features; the model wants them in the order of its columns.
  const bool in_order = batch->groups().size() == 1 && batch->groups()[0].columns_ascend;
  if (input.one_hot && in_order && model->takes_gathered()) {
    const DeviceRows rows = batch->Rows(0);
    gathered = {.records = rows.data, .slot_bytes = rows.slot_bytes, .slots = batch->Bags(0, input).index};
    now.gathered = &gathered;
  } else {
    batch->Pool(input, model->sparse(input.rows), parts_.precision);
  }
  model->ForwardLoss(now, stream_);
  Mark(&forward_);

  RETURN_IF_ERROR(look_for_room("a backward pass"));
  const bool rows_last = holds_rows_ && scales_loss();
  if (!rows_last) {
    LetFollow(beside_);
    if (holds_rows_) Gate(/*not_finite=*/nullptr, beside_);
    gated_.Record(beside_);
    model->set_sparse_gradients_queued([&] {
      LetFollow(beside_);
      QueueRows(batch, input, beside_);
      if (!recorded) Await(beside_);
    });
  }
  if (reducer_ != nullptr) {
    reducer_->Backward({.loss_sum = now.loss_sum, .samples = now.samples}, [&] { model->Backward(now, stream_); });
  } else {
    model->Backward(now, stream_);
  }
  model->set_sparse_gradients_queued(nullptr);
  if (holds_rows_) Mark(&backward_);
  if (scales_loss()) LookForOverflow(input, now);
  if (rows_last) {
    Gate(&outcome()->overflows, stream_);
    LetFollow(beside_);
    gated_.Record(beside_);
    QueueRows(batch, input, beside_);
  }
  if (holds_rows_) {
    RETURN_IF_ERROR(look_for_room("an update"));
    stream_.WaitFor(gated_);
    QueueDenseStep();
  }
  Await(beside_);
  Await(marks_);
  return absl::OkStatus();
}

// By the gradients that the model's backward has left.
void GpuStep::QueueRows(DeviceBatch* batch, const DeviceBatch::Input& input, const Stream& queue) {
  for (size_t g = 0; g < batch->groups().size(); ++g) {
    DeviceBatch::Group& group = batch->groups()[g];
    const DevicePooled gradients = batch->Pooled(g, parts_.model->sparse_gradients(input.rows), parts_.precision);
    if (holds_rows_) {
      SparseUpdateGpu(batch->Bags(g, input), group.size, gradients, optimizers_[g], &control()->rows, *group.records,
                      &outcome()->refused_rows, group.Workspace(), queue);
      continue;
    }
    const auto sum = group.summed ? SumReadGradientsGpu : SumGradientsGpu;
    sum(batch->SumBags(g, input), group.size, gradients, group.sums.device.data(), &outcome()->refused_rows,
        group.Workspace(), queue);
    if (!scales_loss()) continue;
    UnscaleGpu(group.sums.device.data(), int64_t{group.size.slots} * group.size.dim, loss_scale_.device.data(), queue);
  }
  if (!holds_rows_) rows_summed_.RecordForOutside(queue);
}

void GpuStep::QueueDense(const Now& now) {
  SetControl(now);
  QueueDenseStep();
}

void GpuStep::QueueDenseStep() {
  DeviceParameters* const parameters = parts_.model->parameters();
  const DenseStepOptions* const options = &control()->dense;
  GradientClip* const clip = parts_.clip_norm.has_value() ? &outcome()->clip : nullptr;
  if (clip != nullptr) {
    GradientNormGpu(parameters->gradients(), parameters->layout().size(), options, {.max_norm = *parts_.clip_norm},
                    norm_sums_.device.data(), clip, stream_);
  }
  parts_.optimizer->Step({.weights = parameters->weights(),
                          .gradients = parameters->gradients(),
                          .copy_type = WeightCopyOf(parts_.precision),
                          .copy = parameters->copy(),
                          .options = options,
                          .clip = clip,
                          .skip_unless_finite = holds_rows_,
                          .weights_ready = true},
                         stream_);
}

// Whatever has gone wrong by now keeps rows and weights as they are.
void GpuStep::Gate(const uint64_t* not_finite, const Stream& queue) {
  GateStepGpu(&outcome()->loss_sum, not_finite, &control()->rows.gradient_scale, queue);
  GateStepGpu(&outcome()->loss_sum, not_finite, &control()->dense.gradient_scale, queue);
}

// After backward. What a step's rows would get is looked at before it is summed, so that it makes no difference who
// holds them. Buckets of dense gradients may be summed over workers meanwhile. Whatever of such a sum is seen, what is
// not finite stays so in it; what another worker has put there is another's overflow, which skips the step as well.
void GpuStep::LookForOverflow(const DeviceBatch::Input& input, const ModelGpu::Batch& batch) {
  DeviceParameters* const parameters = parts_.model->parameters();
  const int64_t size = parameters->layout().size();
  CountNotFiniteGpu({.data = parameters->gradients(), .rows = 1, .cols = size, .stride = size}, Precision::kFloat32,
                    &outcome()->overflows, stream_);
  CountNotFiniteGpu(parts_.model->sparse_gradients(input.rows), parts_.precision, &outcome()->overflows, stream_);
  if (reducer_ != nullptr) {
    reducer_->PutTotals({.loss_sum = batch.loss_sum, .samples = batch.samples, .not_finite = &outcome()->overflows});
  }
}

// What is queued there from now on waits for what the model's stream has been given so far.
void GpuStep::LetFollow(const Stream& queue) {
  fork_.Record(stream_);
  queue.WaitFor(fork_);
}

// The other way round.
void GpuStep::Await(const Stream& queue) {
  join_.Record(queue);
  stream_.WaitFor(join_);
}

void GpuStep::Mark(Event* mark) {
  LetFollow(marks_);
  mark->RecordForOutside(marks_);
}

// The step before is over, so that the pinned memory is free.
void GpuStep::SetControl(const Now& now) {
  const double scale = 1.0 / (static_cast<double>(now.samples) * gradients_scale_);
  // Without a sample the gate is shut: such a step changes nothing, and is none that the optimizer counts.
  const double dense_scale = now.samples > 0 ? scale : std::numeric_limits<double>::quiet_NaN();
  *control_.host.data() = {.rows = {.gradient_scale = now.samples > 0 ? scale : 0,
                                    .learning_rate_factor = now.learning_rate_factor,
                                    .step = now.step},
                           .dense = {.gradient_scale = dense_scale, .learning_rate_factor = now.learning_rate_factor}};
  control_.Upload(1, stream_);
}

absl::StatusOr<BatchTrainer::Result> GpuStep::Finish() {
  ended_.Synchronize();
  const Outcome& outcome = *outcome_.host.data();
  const bool overflowed = scales_loss() && outcome.overflows > 0;
  if (holds_rows_ && std::isfinite(outcome.loss_sum) && !overflowed) RETURN_IF_ERROR(CheckUpdate(outcome));
  return BatchTrainer::Result{.loss_sum = outcome.loss_sum,
                              .row_gradients = {},
                              .h2d_seconds = loaded_.MillisecondsSince(begin_) * 1e-3,
                              .forward_seconds = forward_.MillisecondsSince(loaded_) * 1e-3,
                              .backward_seconds = backward_.MillisecondsSince(forward_) * 1e-3,
                              .optimizer_seconds = holds_rows_ ? ended_.MillisecondsSince(backward_) * 1e-3 : 0,
                              .overflowed = overflowed};
}

absl::Status GpuStep::CheckUpdate(const Outcome& outcome) const {
  if (outcome.refused_rows > 0) {
    return absl::InvalidArgumentError(absl::StrCat("step ", now_.step, ": the gradients of ", outcome.refused_rows,
                                                   " rows are not finite: training has diverged; lower the learning "
                                                   "rates"));
  }
  if (parts_.clip_norm.has_value() && now_.samples > 0 && !std::isfinite(outcome.clip.norm)) {
    return absl::InvalidArgumentError(absl::StrCat("step ", now_.step, ": the norm of the dense gradients is ",
                                                   outcome.clip.norm,
                                                   ": training has diverged; lower the learning rates"));
  }
  return absl::OkStatus();
}

}  // namespace sparrow
