#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
#include "base/cuda/graph.h"
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

Precision PrecisionOf(const v1::TrainConfig& config) {
  switch (config.precision()) {
    case v1::TrainConfig::FULL:
      return Precision::kFloat32;
    case v1::TrainConfig::TF32:
      return Precision::kTf32;
    case v1::TrainConfig::BFLOAT16:
      return Precision::kBfloat16;
    case v1::TrainConfig::FLOAT16:
      return Precision::kFloat16;
  }
  return Precision::kBfloat16;
}

class GpuBatchTrainer final : public BatchTrainer, public DeviceRowUser {
 public:
  GpuBatchTrainer(const BatchTrainerParts& parts, Precision precision, const GpuTrainerOptions& options)
      : parts_(parts), precision_(precision), rows_max_(options.rows_max), rows_full_(options.rows_full) {}

  ~GpuBatchTrainer() override { stream_.Synchronize(); }  // What is queued still reads the pinned memory.

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
    ASSIGN_OR_RETURN(DeviceBatch batch,
                     DeviceBatch::Make(parts_.layout, DeviceBatch::GroupsByDim(*parts_.layout), rows_max_, stream_));
    batch_.emplace(std::move(batch));
    const size_t rows = static_cast<size_t>(rows_max_);
    RETURN_IF_ERROR(MakeOne(&loss_scale_, "the loss scale"));
    RETURN_IF_ERROR(MakeOne(&loss_sum_, "a step's loss"));
    RETURN_IF_ERROR(MakeOne(&not_finite_, "the number of gradients that are not finite"));
    RETURN_IF_ERROR(MakeOne(&step_options_, "a step's options"));
    RETURN_IF_ERROR(MakeOne(&clip_, "the norm of gradients"));
    RETURN_IF_ERROR(MakeOne(&norm_sums_, "the sums of a norm"));
    norm_sums_->Fill(0, stream_);
    ASSIGN_OR_RETURN(DeviceBuffer<float> logits, AllocateOnDevice<float>(rows, "logits"));
    logits_.emplace(std::move(logits));
    ASSIGN_OR_RETURN(PinnedBuffer<float> host_logits, AllocatePinned<float>(rows, "logits"));
    host_logits_.emplace(std::move(host_logits));
    ASSIGN_OR_RETURN(PinnedBuffer<double> host_loss_sum, AllocatePinned<double>(1, "a step's loss"));
    host_loss_sum_.emplace(std::move(host_loss_sum));
    ASSIGN_OR_RETURN(PinnedBuffer<uint64_t> host_not_finite, AllocatePinned<uint64_t>(1, "a step's overflow"));
    host_not_finite_.emplace(std::move(host_not_finite));
    ASSIGN_OR_RETURN(PinnedBuffer<DenseStepOptions> host_options,
                     AllocatePinned<DenseStepOptions>(1, "a step's options"));
    host_options_.emplace(std::move(host_options));
    not_finite_->Fill(0, stream_);
    CopyLossScale();
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
    const int64_t rows = BucketOf(prepared.batch.rows);
    RETURN_IF_ERROR(batch_->Load(prepared, rows, /*placed=*/{}, stream_));
    Pool(rows);
    model_->Forward(ModelBatch(rows), stream_);
    internal::CopyToHost(host_logits_->data(), logits_->data(), prepared.batch.rows * sizeof(float), stream_);
    stream_.Synchronize();
    return std::span<const float>(host_logits_->data(), prepared.batch.rows);
  }

  absl::StatusOr<Result> ForwardBackward(const PreparedBatch& prepared) override {
    const int64_t rows = BucketOf(prepared.batch.rows);
    if (OperationListener* const listener = OperationListenerNow(); listener != nullptr) listener->StepBegins();
    begin_.Record(stream_);
    const std::span<const DeviceBatch::Placed> placed =
        hot_rows_ == nullptr ? std::span<const DeviceBatch::Placed>() : hot_rows_->placed();
    RETURN_IF_ERROR(batch_->Load(prepared, rows, placed, stream_));
    if (hot_rows_ == nullptr) RETURN_IF_ERROR(batch_->MakeRoomForSums());
    rows_ = rows;
    gradients_scale_ = loss_scale_now_;
    loaded_.Record(stream_);
    RETURN_IF_ERROR(Run(&forward_graphs_, rows, "a forward pass", [&] {
      Pool(rows);
      model_->ForwardLoss(ModelBatch(rows), stream_);
    }));
    forward_.Record(stream_);
    RETURN_IF_ERROR(Run(&backward_graphs_, rows, "a backward pass", [&] {
      if (scales_loss()) not_finite_->Fill(0, stream_);
      if (reducer_ != nullptr) {
        reducer_->Backward(ModelBatch(rows));
      } else {
        model_->Backward(ModelBatch(rows), stream_);
      }
      if (hot_rows_ == nullptr) SumRowGradients(rows);
      if (scales_loss()) LookForOverflow(rows);
    }));
    if (reducer_ != nullptr) RETURN_IF_ERROR(Annotate(reducer_->Start(), "summing the gradients"));
    internal::CopyToHost(host_loss_sum_->data(), loss_sum_->data(), sizeof(double), stream_);
    if (scales_loss()) internal::CopyToHost(host_not_finite_->data(), not_finite_->data(), sizeof(uint64_t), stream_);
    if (hot_rows_ == nullptr) batch_->FetchSums(stream_);
    backward_.Record(stream_);
    stream_.Synchronize();
    return Result{.loss_sum = *host_loss_sum_->data(),
                  .row_gradients = hot_rows_ == nullptr ? batch_->Sums() : std::span<const std::span<const float>>(),
                  .h2d_seconds = loaded_.MillisecondsSince(begin_) * 1e-3,
                  .forward_seconds = forward_.MillisecondsSince(loaded_) * 1e-3,
                  .backward_seconds = backward_.MillisecondsSince(forward_) * 1e-3,
                  .overflowed = scales_loss() && *host_not_finite_->data() > 0};
  }

  void SetLossScale(float scale) override {
    if (scale == loss_scale_now_ || !scales_loss()) return;
    loss_scale_now_ = scale;
    CopyLossScale();
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
    stream_.Synchronize();  // The pinned options are written again.
    *host_options_->data() = {.gradient_scale = 1.0 / (static_cast<double>(samples) * gradients_scale_),
                              .learning_rate_factor = learning_rate_factor};
    internal::CopyToDevice(step_options_->data(), host_options_->data(), sizeof(DenseStepOptions), stream_);
    DeviceParameters* const parameters = model_->parameters();
    if (parts_.clip_norm.has_value()) {
      GradientNormGpu(parameters->gradients(), parameters->layout().size(), step_options_->data(),
                      {.max_norm = *parts_.clip_norm}, norm_sums_->data(), clip_->data(), stream_);
    }
    optimizer_->Step({.weights = parameters->weights(),
                      .gradients = parameters->gradients(),
                      .copy_type = CopyType(),
                      .copy = parameters->copy(),
                      .options = step_options_->data(),
                      .clip = parts_.clip_norm.has_value() ? clip_->data() : nullptr},
                     stream_);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<HotRowStore>> MakeHotRowStore(std::span<const HotRowShare> shares,
                                                               std::span<const TableSpec> tables) override {
    std::vector<std::vector<uint32_t>> groups;
    for (const HotRowShare& share : shares) groups.push_back(share.tables);
    ASSIGN_OR_RETURN(DeviceBatch batch, DeviceBatch::Make(parts_.layout, groups, rows_max_, stream_));
    batch_.emplace(std::move(batch));
    ASSIGN_OR_RETURN(std::unique_ptr<HotRowStoreGpu> store, HotRowStoreGpu::Make({.layout = parts_.layout,
                                                                                  .shares = shares,
                                                                                  .tables = tables,
                                                                                  .samples_max = rows_full_,
                                                                                  .user = this,
                                                                                  .stream = &stream_}));
    hot_rows_ = store.get();
    return store;
  }

  void UpdateRows(size_t share, const SparseOptimizer& optimizer, const SparseStep* step, uint64_t* refused) override {
    DeviceBatch::Group& group = batch_->groups()[share];
    const DeviceBags bags = batch_->Bags(group, rows_);
    const DeviceWorkspace workspace{.data = group.workspace.data(), .bytes = group.workspace.size()};
    GroupLookupsGpu(bags, group.size, workspace, stream_);
    SparseUpdateGpu(bags, group.size, Pooled(group, model_->sparse_gradients(rows_)), optimizer, step,
                    hot_rows_->placed()[share].records, refused, workspace, stream_);
  }

  double gradients_scale() const override { return gradients_scale_; }

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
  // Recorded work, for each number of rows. The first run of a number is not recorded: the products choose how to
  // compute then, and a number that never comes again costs no graph.
  struct Graphs {
    std::map<int64_t, std::optional<Graph>> by_rows;
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

  template <typename T>
  static absl::Status MakeOne(std::optional<DeviceBuffer<T>>* buffer, absl::string_view what) {
    ASSIGN_OR_RETURN(DeviceBuffer<T> made, AllocateOnDevice<T>(1, what));
    buffer->emplace(std::move(made));
    return absl::OkStatus();
  }

  // Full batches are a number of their own; others are padded to a power of two, so that a few graphs serve them all.
  int64_t BucketOf(int64_t rows) const {
    if (rows == rows_full_) return rows;
    const uint64_t bucket = std::bit_ceil(static_cast<uint64_t>(std::max(rows, kBucketRowsMin)));
    return std::min(rows_max_, static_cast<int64_t>(bucket));
  }

  template <typename Work>
  absl::Status Run(Graphs* graphs, int64_t rows, absl::string_view what, const Work& work) {
    if (graphs->generation != batch_->generation()) {
      graphs->by_rows.clear();
      graphs->generation = batch_->generation();
    }
    const auto [graph, first] = graphs->by_rows.try_emplace(rows);
    if (first || OperationListenerNow() != nullptr) {  // What a graph does has no operations.
      RETURN_IF_ERROR(CheckGpuRoom(absl::StrCat(what, " of ", rows, " rows")));
      work();
      return absl::OkStatus();
    }
    if (!graph->second.has_value()) {
      RETURN_IF_ERROR(CheckGpuRoom(absl::StrCat("recording ", what, " of ", rows, " rows")));
      graph->second = Graph::Record(stream_, [&] {
        work();
        return true;
      });
      if (!graph->second.has_value()) {
        return GpuIsOutOfMemory(absl::StrCat(what, " of ", rows, " rows cannot be recorded"));
      }
    }
    graph->second->Replay(stream_);
    return absl::OkStatus();
  }

  ModelGpu::Batch ModelBatch(int64_t rows) {
    return {.rows = rows,
            .dense = batch_->dense(),
            .labels = batch_->labels(),
            .samples = batch_->samples(),
            .loss_scale = loss_scale_->data(),
            .logits = logits_->data(),
            .loss_sum = loss_sum_->data()};
  }

  DevicePooled Pooled(const DeviceBatch::Group& group, const DeviceMatrix& matrix) const {
    return {.values = matrix.data,
            .type = ElementTypeOf(precision_),
            .columns = group.columns.device.data(),
            .stride = static_cast<uint32_t>(matrix.stride),
            .columns_divide_by_4 = group.columns_divide_by_4};
  }

  void Pool(int64_t rows) {
    for (const DeviceBatch::Group& group : batch_->groups()) {
      BagsForwardGpu(batch_->Bags(group, rows), group.source, Pooled(group, model_->sparse(rows)), stream_);
    }
  }

  void SumRowGradients(int64_t rows) {
    for (DeviceBatch::Group& group : batch_->groups()) {
      const DeviceBags bags = batch_->Bags(group, rows);
      const DeviceWorkspace workspace{.data = group.workspace.data(), .bytes = group.workspace.size()};
      GroupLookupsGpu(bags, group.size, workspace, stream_);
      SumGradientsGpu(bags, group.size, Pooled(group, model_->sparse_gradients(rows)), group.sums.device.data(),
                      not_finite_->data(), workspace, stream_);
      if (!scales_loss()) continue;
      UnscaleGpu(group.sums.device.data(), int64_t{group.size.slots} * group.size.dim, loss_scale_->data(), stream_);
    }
  }

  bool scales_loss() const { return precision_ == Precision::kFloat16; }

  void CopyLossScale() {
    loss_scale_->CopyFrom({&loss_scale_now_, 1}, stream_);
    stream_.Synchronize();
  }

  // After backward. What a step's rows would get is looked at before it is summed, so that it makes no difference who
  // holds them.
  // Buckets of dense gradients may be summed over workers meanwhile. Whatever of such a sum is seen, what is not finite
  // stays so in it; what another worker has put there is another's overflow, which skips the step as well.
  void LookForOverflow(int64_t rows) {
    DeviceParameters* const parameters = model_->parameters();
    const int64_t size = parameters->layout().size();
    CountNotFiniteGpu({.data = parameters->gradients(), .rows = 1, .cols = size, .stride = size}, Precision::kFloat32,
                      not_finite_->data(), stream_);
    CountNotFiniteGpu(model_->sparse_gradients(rows), precision_, not_finite_->data(), stream_);
    if (reducer_ != nullptr) reducer_->PutTotals(ModelBatch(rows), not_finite_->data());
  }

  WeightCopy CopyType() const {
    if (ElementBytes(precision_) == 4) return WeightCopy::kNone;
    return precision_ == Precision::kBfloat16 ? WeightCopy::kBfloat16 : WeightCopy::kFloat16;
  }

  const BatchTrainerParts parts_;
  const Precision precision_;
  const int64_t rows_max_;
  const int64_t rows_full_;
  float loss_scale_now_ = 1;            // In loss_scale_,
  float gradients_scale_ = 1;           // and in the dense gradients, and those of placed rows, as they are now.
  int64_t rows_ = 0;                    // As many as the batch in work is computed as.
  HotRowStoreGpu* hot_rows_ = nullptr;  // Null: the servers hold all rows.
  Stream stream_;
  Event begin_, loaded_, forward_, backward_;
  std::unique_ptr<ModelGpu> model_;
  std::optional<DenseOptimizerGpu> optimizer_;
  std::optional<DeviceBatch> batch_;
  std::optional<DeviceBuffer<float>> loss_scale_;               // [1]
  std::optional<DeviceBuffer<double>> loss_sum_;                // [1]
  std::optional<DeviceBuffer<uint64_t>> not_finite_;            // [1]: without scaling, rows alone, which servers name
  std::optional<DeviceBuffer<DenseStepOptions>> step_options_;  // [1]
  std::optional<DeviceBuffer<GradientClip>> clip_;              // [1]
  std::optional<DeviceBuffer<GridSums>> norm_sums_;             // [1]
  std::optional<DeviceBuffer<float>> logits_;                   // [rows_max]
  std::optional<PinnedBuffer<float>> host_logits_;              // [rows_max]
  std::optional<PinnedBuffer<double>> host_loss_sum_;           // [1]
  std::optional<PinnedBuffer<uint64_t>> host_not_finite_;       // [1]
  std::optional<PinnedBuffer<DenseStepOptions>> host_options_;  // [1]
  std::unique_ptr<DeviceCollective> device_collective_;         // Null: gradients are summed through the host.
  std::unique_ptr<GradientReducer> reducer_;                    // Over device_collective_.
  Graphs forward_graphs_, backward_graphs_;
  std::vector<float> reduced_;  // Of SumOverWorkers.
  std::vector<float> spread_;   // [parameters], in the GPU's layout
};

}  // namespace

absl::StatusOr<std::unique_ptr<BatchTrainer>> MakeGpuBatchTrainer(const BatchTrainerParts& parts, const v1::Job& job,
                                                                  const GpuTrainerOptions& options) {
  const Precision precision = PrecisionOf(job.train());
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
