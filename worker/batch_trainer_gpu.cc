#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
#include "base/cuda/graph.h"
#include "base/cuda/mirror.h"
#include "base/cuda/operation.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "dense/cublas_lt.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/device_collective.h"
#include "dense/gradient_norm_gpu.h"
#include "dense/gradient_reducer.h"
#include "dense/loss_scale.h"
#include "dense/loss_scale_gpu.h"
#include "dense/model_gpu.h"
#include "dense/reduction_terms.h"
#include "dense/step_gate_gpu.h"
#include "worker/batch_trainer.h"
#include "worker/device_batch.h"
#include "worker/gpu_reserve.h"
#include "worker/hot_row_store_gpu.h"
#include "worker/sum_over_workers.h"

namespace sparrow {
namespace {

constexpr int64_t kBucketRowsMin = 64;

ElementType ElementTypeOf(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
    case Precision::kTf32:
      return ElementType::kFloat32;
    case Precision::kBfloat16:
      return ElementType::kBfloat16;
    case Precision::kFloat16:
      return ElementType::kFloat16;
  }
  return ElementType::kFloat32;
}

// What a step needs to know that its graphs were not recorded with.
struct StepControl {
  SparseStep rows;
  DenseStepOptions dense;
};

// What becomes of a step.
struct StepOutcome {
  double loss_sum;
  uint64_t refused_rows;  // That stay as they are because a gradient is not finite. Of rows that servers hold: they
                          // refuse such rows by name.
  uint64_t overflows;     // Gradients that are not finite, where the loss is scaled.
  GradientClip clip;
};

// Batches are copied to the GPU on one stream and computed on another. With rows in GPU memory a step is queued as a
// whole, from the slots of its look-ups to the new weights, and the host waits for its outcome alone.
class GpuBatchTrainer final : public BatchTrainer {
 public:
  GpuBatchTrainer(const BatchTrainerParts& parts, Precision precision, const GpuTrainerOptions& options)
      : parts_(parts), precision_(precision), rows_max_(options.rows_max), rows_full_(options.rows_full) {}

  ~GpuBatchTrainer() override {  // What is queued still reads the pinned memory.
    copies_.Synchronize();
    stream_.Synchronize();
  }

  bool copies_inputs() const override { return true; }

  absl::Status Prepare(const v1::Job& job, const GpuTrainerOptions& options) {
    ASSIGN_OR_RETURN(
        model_, MakeModelGpu(job.model(), {parts_.layout->dense_columns, parts_.layout->FeatureDims()}, *parts_.model,
                             {.precision = precision_,
                              .rows_max = rows_max_,
                              .deterministic = job.train().deterministic(),
                              .plan_file = options.plan_file},
                             stream_));
    const int64_t size = model_->parameters()->layout().size();
    ASSIGN_OR_RETURN(const DenseRule rule, DenseRuleOf(job.train().optimizer()));
    optimizer_ = DenseOptimizerGpu::Make(rule, size, stream_);
    if (!optimizer_.has_value()) {
      return GpuIsOutOfMemory(absl::StrCat("the dense optimizer's state needs ",
                                           static_cast<uint64_t>(DenseStates(rule.kind) * size) * sizeof(float),
                                           " bytes"));
    }
    std::vector<float> spread(static_cast<size_t>(size));
    const std::vector<DenseOptimizer::State> states = parts_.optimizer->states();
    for (size_t i = 0; i < states.size(); ++i) {
      model_->parameters()->layout().Spread(states[i].values, spread);
      optimizer_->states()[i].CopyFrom(spread, stream_);
      stream_.Synchronize();
    }
    optimizer_->SetUpdates(parts_.optimizer->updates(), stream_);
    ASSIGN_OR_RETURN(batch_, MakeBatch(DeviceBatch::GroupsByDim(*parts_.layout)));
    ASSIGN_OR_RETURN(control_, Mirror<StepControl>::Make(1, "what a step needs to know"));
    ASSIGN_OR_RETURN(outcome_, Mirror<StepOutcome>::Make(1, "what becomes of a step"));
    ASSIGN_OR_RETURN(loss_scale_, Mirror<float>::Make(1, "the loss scale"));
    ASSIGN_OR_RETURN(norm_sums_, Mirror<GridSums>::Make(1, "the sums of a norm"));
    ASSIGN_OR_RETURN(logits_, Mirror<float>::Make(static_cast<size_t>(rows_max_), "logits"));
    norm_sums_.device.Fill(0, stream_);
    outcome_.device.Fill(0, stream_);
    UploadLossScale();
    stream_.Synchronize();
    return CheckGpuReserve("model and batches leave too little");
  }

  absl::Status Join(const Meeting& meeting) override {
    Collective* const group = meeting.collective;
    if (group->size() == 1) return absl::OkStatus();
    const std::vector<GradientBucket> buckets = GradientReducer::Buckets(model_.get(), {});
    ASSIGN_OR_RETURN(const ReductionPlan plan, AgreeOnReduction({.able = NcclVersion() > 0 && meeting.board != nullptr,
                                                                 .library = NcclVersion(),
                                                                 .gpu = HashBytes(GpuUuid()),
                                                                 .floats = static_cast<uint64_t>(buckets.front().end),
                                                                 .layout = FingerprintOf(buckets)},
                                                                group));
    if (!plan.on_gpus) {
      LOG(INFO) << "gradients are summed through the host: " << plan.why_not;
      return absl::OkStatus();
    }
    absl::StatusOr<std::unique_ptr<DeviceCollective>> met = MakeNcclCollective(
        {.rank = group->rank(), .size = group->size(), .cancelled = meeting.cancelled}, meeting.board);
    if (absl::IsCancelled(met.status())) return met.status();
    // All of them, or none.
    ASSIGN_OR_RETURN(const std::vector<std::string> troubles, group->AllGather(met.status().message()));
    for (size_t rank = 0; rank < troubles.size(); ++rank) {
      if (troubles[rank].empty()) continue;
      LOG(WARNING) << "gradients are summed through the host, which is slow, because rank " << rank
                   << " cannot reach the others by NCCL: " << troubles[rank];
      return absl::OkStatus();
    }
    device_collective_ = std::move(*met);
    ASSIGN_OR_RETURN(reducer_, GradientReducer::Make(model_.get(), device_collective_.get(),
                                                     {.totals_last = scales_loss()}, stream_));
    LOG(INFO) << "gradients are summed between " << group->size() << " GPUs by NCCL " << NcclVersion() << ", in "
              << buckets.size() << " buckets";
    return absl::OkStatus();
  }

  absl::StatusOr<std::span<const float>> Forward(const PreparedBatch& prepared) override {
    // A batch of its own: the next training batch may be on the GPU already.
    if (scored_ == nullptr) {
      ASSIGN_OR_RETURN(scored_, MakeBatch(DeviceBatch::GroupsByDim(*parts_.layout)));
    }
    RETURN_IF_ERROR(scored_->Load(prepared, BucketOf(prepared.batch.rows), stream_));
    RETURN_IF_ERROR(scored_->MakeRoomForRows());
    scored_->FillRows(prepared);
    scored_->UploadRows();
    if (!std::exchange(has_scored_, true)) RETURN_IF_ERROR(CheckGpuRoom("an evaluation"));
    Pool(*scored_, scored_->input());
    model_->Forward(ModelBatch(scored_->input()), stream_);
    logits_.Fetch(prepared.batch.rows, stream_);
    stream_.Synchronize();
    return std::span<const float>(logits_.host.data(), prepared.batch.rows);
  }

  absl::Status Load(const PreparedBatch& prepared) override {
    // While GPUs sum, what waits for all of this one's work may wait for ever: such a load is left to Start.
    load_late_ = reducer_ != nullptr && !batch_->HasRoom(prepared);
    if (load_late_) return absl::OkStatus();
    return batch_->Load(prepared, BucketOf(prepared.batch.rows), copies_);
  }

  absl::Status Start(const PreparedBatch& prepared, double learning_rate_factor) override {
    if (OperationListener* const listener = OperationListenerNow(); listener != nullptr) listener->StepBegins();
    if (std::exchange(load_late_, false)) {
      RETURN_IF_ERROR(batch_->Load(prepared, BucketOf(prepared.batch.rows), copies_));
    }
    const DeviceBatch::Input& input = batch_->input();
    step_ = {.step = prepared.batch.step, .samples = prepared.batch.rows, .input = &input};
    gradients_scale_ = loss_scale_now_;
    RETURN_IF_ERROR(batch_->MakeRoom(/*with_sums=*/!holds_rows_));
    batch_->FillRows(prepared);
    stream_.WaitFor(input.loaded);
    begin_.Record(stream_);
    batch_->UploadRows();
    if (holds_rows_) SetControl(prepared.batch.step, prepared.batch.rows, learning_rate_factor);
    loaded_.Record(stream_);
    RETURN_IF_ERROR(Run(&forward_graphs_, input, "a forward pass", [&] {
      if (scales_loss()) internal::FillDevice(&outcome()->overflows, 0, sizeof(uint64_t), stream_);
      fork_.Record(stream_);
      beside_.WaitFor(fork_);
      GroupLookups(input);
      Pool(*batch_, input);
      model_->ForwardLoss(ModelBatch(input), stream_);
      grouped_.Record(beside_);
      stream_.WaitFor(grouped_);
    }));
    forward_.Record(stream_);
    RETURN_IF_ERROR(Run(&backward_graphs_, input, "a backward pass", [&] {
      if (reducer_ != nullptr) {
        reducer_->Backward(ModelBatch(input));
      } else {
        model_->Backward(ModelBatch(input), stream_);
      }
      if (!holds_rows_) SumRowGradients(input);
      if (scales_loss()) LookForOverflow(input);
    }));
    if (reducer_ != nullptr) RETURN_IF_ERROR(Annotate(reducer_->Start(), "summing the gradients"));
    if (!holds_rows_) batch_->FetchSums();
    backward_.Record(stream_);
    if (holds_rows_) RETURN_IF_ERROR(Run(&update_graphs_, input, "an update", [&] { Update(input); }));
    outcome_.Fetch(1, stream_);
    ended_.Record(stream_);
    return absl::OkStatus();
  }

  absl::StatusOr<Result> Finish() override {
    ended_.Synchronize();
    const StepOutcome& outcome = *outcome_.host.data();
    const bool overflowed = scales_loss() && outcome.overflows > 0;
    if (holds_rows_ && std::isfinite(outcome.loss_sum) && !overflowed) RETURN_IF_ERROR(CheckUpdate(outcome));
    return Result{.loss_sum = outcome.loss_sum,
                  .row_gradients = holds_rows_ ? std::span<const std::span<const float>>() : batch_->Sums(*step_.input),
                  .h2d_seconds = loaded_.MillisecondsSince(begin_) * 1e-3,
                  .forward_seconds = forward_.MillisecondsSince(loaded_) * 1e-3,
                  .backward_seconds = backward_.MillisecondsSince(forward_) * 1e-3,
                  .optimizer_seconds = holds_rows_ ? ended_.MillisecondsSince(backward_) * 1e-3 : 0,
                  .overflowed = overflowed};
  }

  void SetLossScale(float scale) override {
    if (scale == loss_scale_now_ || !scales_loss()) return;
    loss_scale_now_ = scale;
    UploadLossScale();
  }

  absl::Status Reduce(Collective* collective, Sums* sums) override {
    if (collective->size() == 1) return absl::OkStatus();
    if (reducer_ == nullptr) return ReduceThroughHost(collective, sums);
    const absl::StatusOr<GradientReducer::Result> result = reducer_->Finish();
    if (!result.ok()) return Annotate(result.status(), "summing the gradients");
    *sums = {.loss = result->totals.loss,
             .samples = result->totals.samples,
             .overflows = result->totals.overflows,
             .exposed_seconds = result->exposed_seconds};
    return absl::OkStatus();
  }

  absl::Status UpdateDense(uint64_t samples, double learning_rate_factor) override {
    if (holds_rows_) return absl::OkStatus();
    SetControl(step_.step, samples, learning_rate_factor);
    StepDense();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<HotRowStore>> MakeHotRowStore(std::span<const HotRowShare> shares,
                                                               std::span<const TableSpec> tables) override {
    std::vector<std::vector<uint32_t>> groups;
    for (const HotRowShare& share : shares) {
      groups.push_back(share.tables);
      optimizers_.push_back(tables[share.tables[0]].optimizer);
    }
    batch_ = nullptr;  // There may not be memory for both.
    ASSIGN_OR_RETURN(batch_, MakeBatch(groups));
    holds_rows_ = true;
    return MakeGpuHotRowStore({.layout = parts_.layout,
                               .shares = shares,
                               .tables = tables,
                               .samples_max = rows_full_,
                               .batch = batch_.get(),
                               .compute = &stream_,
                               .beside = &copies_});
  }

  absl::Status CopyToModel() override {
    const DeviceParameters& parameters = *model_->parameters();
    parameters.Get(parts_.model->weights(), stream_);
    std::vector<float> spread(static_cast<size_t>(parameters.layout().size()));
    const std::vector<DenseOptimizer::State> states = parts_.optimizer->states();
    for (size_t i = 0; i < states.size(); ++i) {
      optimizer_->states()[i].CopyTo(spread, stream_);
      stream_.Synchronize();
      parameters.layout().Collect(spread, states[i].values);
    }
    uint64_t updates = 0;
    optimizer_->CopyUpdatesTo(&updates, stream_);
    stream_.Synchronize();
    parts_.optimizer->set_updates(updates);
    return absl::OkStatus();
  }

 private:
  // Recorded work, for each input and number of rows. The first run of a number is not recorded: the products choose
  // how to compute then, and a number that never comes again costs no graph.
  struct Graphs {
    std::map<std::pair<int, int64_t>, std::optional<Graph>> by_input_and_rows;
    uint64_t generation = 0;
  };

  // In the host's layout, since other workers may compute on CPUs.
  absl::Status ReduceThroughHost(Collective* collective, Sums* sums) {
    const DeviceLayout& layout = model_->parameters()->layout();
    const size_t n = parts_.model->weights().size();
    spread_.resize(static_cast<size_t>(layout.size()));
    reduced_.resize(n);
    internal::CopyToHost(spread_.data(), model_->parameters()->gradients(), spread_.size() * sizeof(float), stream_);
    stream_.Synchronize();
    layout.Collect(spread_, std::span<float>(reduced_).first(n));
    const float scale = std::exchange(gradients_scale_, 1.0f);  // The others may have none.
    UnscaleCpu(std::span<float>(reduced_).first(n), &scale);
    RETURN_IF_ERROR(SumOverWorkers(collective, n, &reduced_, sums));
    layout.Spread(std::span<const float>(reduced_).first(n), spread_);
    internal::CopyToDevice(model_->parameters()->gradients(), spread_.data(), spread_.size() * sizeof(float), stream_);
    stream_.Synchronize();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DeviceBatch>> MakeBatch(const std::vector<std::vector<uint32_t>>& groups) {
    return DeviceBatch::Make(parts_.layout, groups, rows_max_, &stream_);
  }

  // Full batches are a number of their own; others are padded to a power of two, so that a few graphs serve them all.
  int64_t BucketOf(int64_t rows) const {
    if (rows == rows_full_) return rows;
    const uint64_t bucket = std::bit_ceil(static_cast<uint64_t>(std::max(rows, kBucketRowsMin)));
    return std::min(rows_max_, static_cast<int64_t>(bucket));
  }

  template <typename Work>
  absl::Status Run(Graphs* graphs, const DeviceBatch::Input& input, absl::string_view what, const Work& work) {
    if (graphs->generation != batch_->generation()) {
      graphs->by_input_and_rows.clear();
      graphs->generation = batch_->generation();
    }
    const auto [graph, first] = graphs->by_input_and_rows.try_emplace({input.number, input.rows});
    if (first || OperationListenerNow() != nullptr) {  // What a graph does has no operations.
      RETURN_IF_ERROR(CheckGpuRoom(absl::StrCat(what, " of ", input.rows, " rows")));
      work();
      return absl::OkStatus();
    }
    if (!graph->second.has_value()) {
      RETURN_IF_ERROR(CheckGpuRoom(absl::StrCat("recording ", what, " of ", input.rows, " rows")));
      graph->second = Graph::Record(stream_, [&] {
        work();
        return true;
      });
      if (!graph->second.has_value()) {
        return GpuIsOutOfMemory(absl::StrCat(what, " of ", input.rows, " rows cannot be recorded"));
      }
    }
    graph->second->Replay(stream_);
    return absl::OkStatus();
  }

  ModelGpu::Batch ModelBatch(const DeviceBatch::Input& input) {
    return {.rows = input.rows,
            .dense = input.dense.device.data(),
            .labels = input.labels.device.data(),
            .samples = input.samples.device.data(),
            .loss_scale = loss_scale_.device.data(),
            .logits = logits_.device.data(),
            .loss_sum = &outcome()->loss_sum};
  }

  DevicePooled Pooled(const DeviceBatch::Group& group, const DeviceMatrix& matrix) const {
    return {.values = matrix.data,
            .type = ElementTypeOf(precision_),
            .columns = group.columns.device.data(),
            .stride = static_cast<uint32_t>(matrix.stride),
            .columns_divide_by_4 = group.columns_divide_by_4};
  }

  void Pool(DeviceBatch& batch, const DeviceBatch::Input& input) {
    for (size_t g = 0; g < batch.groups().size(); ++g) {
      BagsForwardGpu(batch.Bags(g, input), batch.Rows(g), Pooled(batch.groups()[g], model_->sparse(input.rows)),
                     stream_);
    }
  }

  // Beside the forward: it needs no gradient.
  void GroupLookups(const DeviceBatch::Input& input) {
    for (size_t g = 0; g < batch_->groups().size(); ++g) {
      DeviceBatch::Group& group = batch_->groups()[g];
      GroupLookupsGpu(batch_->Bags(g, input), group.size, group.Workspace(), beside_);
    }
  }

  void SumRowGradients(const DeviceBatch::Input& input) {
    for (size_t g = 0; g < batch_->groups().size(); ++g) {
      DeviceBatch::Group& group = batch_->groups()[g];
      SumGradientsGpu(batch_->Bags(g, input), group.size, Pooled(group, model_->sparse_gradients(input.rows)),
                      group.sums.device.data(), &outcome()->refused_rows, group.Workspace(), stream_);
      if (!scales_loss()) continue;
      UnscaleGpu(group.sums.device.data(), int64_t{group.size.slots} * group.size.dim, loss_scale_.device.data(),
                 stream_);
    }
  }

  bool scales_loss() const { return precision_ == Precision::kFloat16; }

  // No step is in work.
  void UploadLossScale() {
    *loss_scale_.host.data() = loss_scale_now_;
    loss_scale_.Upload(1, stream_);
  }

  // After backward. What a step's rows would get is looked at before it is summed, so that it makes no difference who
  // holds them.
  // Buckets of dense gradients may be summed over workers meanwhile. Whatever of such a sum is seen, what is not finite
  // stays so in it; what another worker has put there is another's overflow, which skips the step as well.
  void LookForOverflow(const DeviceBatch::Input& input) {
    DeviceParameters* const parameters = model_->parameters();
    const int64_t size = parameters->layout().size();
    CountNotFiniteGpu({.data = parameters->gradients(), .rows = 1, .cols = size, .stride = size}, Precision::kFloat32,
                      &outcome()->overflows, stream_);
    CountNotFiniteGpu(model_->sparse_gradients(input.rows), precision_, &outcome()->overflows, stream_);
    if (reducer_ != nullptr) reducer_->PutTotals(ModelBatch(input), &outcome()->overflows);
  }

  // The rest of a step whose rows this worker holds. Whatever has gone wrong shuts the gate in front of what is left.
  void Update(const DeviceBatch::Input& input) {
    const uint64_t* const overflows = scales_loss() ? &outcome()->overflows : nullptr;
    GateStepGpu(&outcome()->loss_sum, overflows, &control()->rows.gradient_scale, stream_);
    GateStepGpu(&outcome()->loss_sum, overflows, &control()->dense.gradient_scale, stream_);
    internal::FillDevice(&outcome()->refused_rows, 0, sizeof(outcome()->refused_rows), stream_);
    for (size_t g = 0; g < batch_->groups().size(); ++g) {
      DeviceBatch::Group& group = batch_->groups()[g];
      SparseUpdateGpu(batch_->Bags(g, input), group.size, Pooled(group, model_->sparse_gradients(input.rows)),
                      optimizers_[g], &control()->rows, *group.records, &outcome()->refused_rows, group.Workspace(),
                      stream_);
    }
    GateStepGpu(&outcome()->loss_sum, &outcome()->refused_rows, &control()->dense.gradient_scale, stream_);
    StepDense();
  }

  void StepDense() {
    DeviceParameters* const parameters = model_->parameters();
    const DenseStepOptions* const options = &control()->dense;
    GradientClip* const clip = parts_.clip_norm.has_value() ? &outcome()->clip : nullptr;
    if (clip != nullptr) {
      GradientNormGpu(parameters->gradients(), parameters->layout().size(), options, {.max_norm = *parts_.clip_norm},
                      norm_sums_.device.data(), clip, stream_);
    }
    optimizer_->Step({.weights = parameters->weights(),
                      .gradients = parameters->gradients(),
                      .copy_type = CopyType(),
                      .copy = parameters->copy(),
                      .options = options,
                      .clip = clip,
                      .skip_unless_finite = holds_rows_},
                     stream_);
  }

  // Queues what a step needs to know. The last step is over, so that the pinned memory is free.
  void SetControl(uint64_t step, uint64_t samples, double learning_rate_factor) {
    const double scale = 1.0 / (static_cast<double>(samples) * gradients_scale_);
    // Without a sample the gate is shut: such a step changes nothing, and is none that the optimizer counts.
    const double dense_scale = samples > 0 ? scale : std::numeric_limits<double>::quiet_NaN();
    *control_.host.data() = {
        .rows = {.gradient_scale = samples > 0 ? scale : 0, .learning_rate_factor = learning_rate_factor, .step = step},
        .dense = {.gradient_scale = dense_scale, .learning_rate_factor = learning_rate_factor}};
    control_.Upload(1, stream_);
  }

  absl::Status CheckUpdate(const StepOutcome& outcome) const {
    if (outcome.refused_rows > 0) {
      return absl::InvalidArgumentError(absl::StrCat("step ", step_.step, ": the gradients of ", outcome.refused_rows,
                                                     " rows are not finite: training has diverged; lower the learning "
                                                     "rates"));
    }
    if (parts_.clip_norm.has_value() && step_.samples > 0 && !std::isfinite(outcome.clip.norm)) {
      return absl::InvalidArgumentError(absl::StrCat("step ", step_.step, ": the norm of the dense gradients is ",
                                                     outcome.clip.norm,
                                                     ": training has diverged; lower the learning rates"));
    }
    return absl::OkStatus();
  }

  // In GPU memory.
  StepControl* control() { return control_.device.data(); }
  StepOutcome* outcome() { return outcome_.device.data(); }

  WeightCopy CopyType() const {
    if (ElementBytes(precision_) == 4) return WeightCopy::kNone;
    return precision_ == Precision::kBfloat16 ? WeightCopy::kBfloat16 : WeightCopy::kFloat16;
  }

  const BatchTrainerParts parts_;
  const Precision precision_;
  const int64_t rows_max_;
  const int64_t rows_full_;
  float loss_scale_now_ = 1;   // In loss_scale_,
  float gradients_scale_ = 1;  // and in the dense gradients, and those of rows that this worker holds, as they are now.
  bool holds_rows_ = false;    // In a store that MakeHotRowStore has made. Else servers hold all rows.
  Stream stream_;              // Computes.
  Stream beside_;              // Computes what can be beside it, in the same graphs.
  Stream copies_;              // Copies inputs, and looks rows up.
  Event fork_, grouped_;       // Of these graphs.
  Event begin_, loaded_, forward_, backward_, ended_;
  std::unique_ptr<ModelGpu> model_;
  std::optional<DenseOptimizerGpu> optimizer_;
  std::vector<SparseOptimizer> optimizers_;  // [groups] of rows that this worker holds
  std::unique_ptr<DeviceBatch> batch_;       // Of training,
  std::unique_ptr<DeviceBatch> scored_;      // and of evaluation; null before the first.
  bool has_scored_ = false;
  bool load_late_ = false;  // Start loads the batch.
  struct {
    uint64_t step = 0;
    uint64_t samples = 0;
    const DeviceBatch::Input* input = nullptr;
  } step_;  // Started.
  Mirror<StepControl> control_ = Mirror<StepControl>::Empty();
  Mirror<StepOutcome> outcome_ = Mirror<StepOutcome>::Empty();
  Mirror<float> loss_scale_ = Mirror<float>::Empty();  // [1]
  Mirror<GridSums> norm_sums_ = Mirror<GridSums>::Empty();
  Mirror<float> logits_ = Mirror<float>::Empty();        // [rows_max]
  std::unique_ptr<DeviceCollective> device_collective_;  // Null: gradients are summed through the host.
  std::unique_ptr<GradientReducer> reducer_;             // Over device_collective_.
  Graphs forward_graphs_, backward_graphs_, update_graphs_;
  std::vector<float> reduced_;  // Of SumOverWorkers.
  std::vector<float> spread_;   // [parameters], in the GPU's layout
};

}  // namespace

absl::StatusOr<std::unique_ptr<BatchTrainer>> MakeGpuBatchTrainer(const BatchTrainerParts& parts, const v1::Job& job,
                                                                  const GpuTrainerOptions& options) {
  const Precision precision = PrecisionOf(job.train().precision());
  if (const std::string absence = CublasLtAbsence(); !absence.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("cuda:", options.gpu, ": cuBLASLt cannot be loaded: ", absence));
  }
  if (const std::string reason = TryGpu(options.gpu); !reason.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("cuda:", options.gpu, " cannot be used: ", reason));
  }
  LOG(INFO) << job.name() << ": trains on GPU " << options.gpu << ", " << GpuName() << ", in "
            << v1::TrainConfig::Precision_Name(job.train().precision());
  RETURN_IF_ERROR(Annotate(CheckGpuReserve("others leave too little"), absl::StrCat("cuda:", options.gpu)));
  auto trainer = std::make_unique<GpuBatchTrainer>(parts, precision, options);
  RETURN_IF_ERROR(Annotate(trainer->Prepare(job, options), absl::StrCat("cuda:", options.gpu)));
  return trainer;
}

}  // namespace sparrow
