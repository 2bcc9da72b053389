#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
#include "base/cuda/mirror.h"
#include "base/cuda/operation.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "dense/cublas_lt.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/device_collective.h"
#include "dense/gpu_meeting.h"
#include "dense/gradient_reducer.h"
#include "dense/loss_scale.h"
#include "dense/model_gpu.h"
#include "worker/batch_trainer.h"
#include "worker/device_batch.h"
#include "worker/gpu_optimizer_state.h"
#include "worker/gpu_reserve.h"
#include "worker/gpu_step.h"
#include "worker/hot_records.h"
#include "worker/hot_replica_gpu.h"
#include "worker/hot_row_store_gpu.h"
#include "worker/sum_over_workers.h"

namespace sparrow {
namespace {

constexpr int64_t kBucketRowsMin = 64;

// Batches are copied to the GPU on one stream and computed on another. With rows in GPU memory a step is queued as a
// whole, from the slots of its look-ups to the new weights, and the host waits for its outcome alone (GpuStep).
class GpuBatchTrainer final : public BatchTrainer {
 public:
  GpuBatchTrainer(const BatchTrainerParts& parts, Precision precision, const GpuTrainerOptions& options)
      : parts_(parts), precision_(precision), rows_max_(options.rows_max), rows_full_(options.rows_full) {}

  ~GpuBatchTrainer() override {  // What is queued still reads the pinned memory.
    copies_.Synchronize();
    stream_.Synchronize();
  }

  bool computes_elsewhere() const override { return true; }

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
    optimizer_ = DenseOptimizerGpu::Make(rule, size, stream_, model_->parameters()->layout().Matrices());
    if (!optimizer_.has_value()) {
      return GpuIsOutOfMemory(absl::StrCat("the dense optimizer's state needs ",
                                           static_cast<uint64_t>(DenseStates(rule.kind) * size) * sizeof(float),
                                           " bytes"));
    }
    OptimizerStateToGpu(parts_.optimizer, model_->parameters()->layout(), &*optimizer_, stream_);
    ASSIGN_OR_RETURN(batch_, MakeBatch(DeviceBatch::GroupsByDim(*parts_.layout)));
    ASSIGN_OR_RETURN(logits_, Mirror<float>::Make(static_cast<size_t>(rows_max_), "logits"));
    ASSIGN_OR_RETURN(step_, GpuStep::Make({.model = model_.get(),
                                           .optimizer = &*optimizer_,
                                           .precision = precision_,
                                           .clip_norm = parts_.clip_norm,
                                           .logits = logits_.device.data(),
                                           .stream = &stream_}));
    stream_.Synchronize();
    return CheckGpuReserve("model and batches leave too little");
  }

  absl::Status Join(const Meeting& meeting) override {
    if (meeting.collective->size() == 1) return absl::OkStatus();
    ASSIGN_OR_RETURN(device_collective_, MeetGpus(GradientReducer::Buckets(model_.get(), {}), meeting));
    if (device_collective_ == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(reducer_, GradientReducer::Make(model_.get(), device_collective_.get(),
                                                     {.totals_last = step_->scales_loss()}, stream_));
    step_->set_reducer(reducer_.get());
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
    const DeviceBatch::Input& input = scored_->input();
    scored_->Pool(input, model_->sparse(input.rows), precision_);
    model_->Forward({.rows = input.rows, .dense = input.dense.device.data(), .logits = logits_.device.data()}, stream_);
    logits_.Fetch(prepared.batch.rows, stream_);
    stream_.Synchronize();
    return std::span<const float>(logits_.host.data(), prepared.batch.rows);
  }

  absl::Status Load(const PreparedBatch& prepared) override {
    // While GPUs sum, what waits for all of this one's work may wait for ever: such a load is left to Start. But rows
    // that all workers hold are looked up before; such batches have room for a quarter more look-ups than the largest.
    load_late_ = reducer_ != nullptr && !replicates_ && !batch_->HasRoom(prepared);
    if (load_late_) return absl::OkStatus();
    return batch_->Load(prepared, BucketOf(prepared.batch.rows), copies_);
  }

  absl::Status Start(const PreparedBatch& prepared, double learning_rate_factor) override {
    if (OperationListener* const listener = OperationListenerNow(); listener != nullptr) listener->StepBegins();
    if (std::exchange(load_late_, false)) {
      RETURN_IF_ERROR(batch_->Load(prepared, BucketOf(prepared.batch.rows), copies_));
    }
    RETURN_IF_ERROR(batch_->MakeRoom(/*with_sums=*/!step_->holds_rows()));
    batch_->FillRows(prepared);
    started_ = &batch_->input();
    step_number_ = prepared.batch.step;
    return step_->Queue(
        batch_.get(),
        {.step = prepared.batch.step, .samples = prepared.batch.rows, .learning_rate_factor = learning_rate_factor});
  }

  absl::StatusOr<Result> Finish() override {
    ASSIGN_OR_RETURN(Result result, step_->Finish());
    if (!step_->holds_rows()) result.row_gradients = batch_->Sums(*started_);
    return result;
  }

  void SetLossScale(float scale) override { step_->SetLossScale(scale); }

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
    if (step_->holds_rows()) return absl::OkStatus();
    step_->QueueDense({.step = step_number_, .samples = samples, .learning_rate_factor = learning_rate_factor});
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<HotRowStore>> MakeHotRowStore(std::span<const HotRowShare> shares,
                                                               std::span<const TableSpec> tables) override {
    std::vector<std::vector<uint32_t>> groups;
    std::vector<SparseOptimizer> optimizers;
    for (const HotRowShare& share : shares) {
      groups.push_back(share.tables);
      optimizers.push_back(tables[share.tables[0]].optimizer);
    }
    batch_ = nullptr;  // There may not be memory for both.
    ASSIGN_OR_RETURN(batch_, MakeBatch(groups));
    step_->HoldRows(std::move(optimizers));
    return MakeGpuHotRowStore({.layout = parts_.layout,
                               .shares = shares,
                               .tables = tables,
                               .samples_max = rows_full_,
                               .batch = batch_.get(),
                               .compute = &stream_,
                               .beside = &copies_});
  }

  absl::StatusOr<std::unique_ptr<HotReplica>> MakeHotReplica(std::span<const HotRowShare> shares,
                                                             std::span<const TableSpec> tables) override {
    uint64_t buckets = 0;
    std::vector<std::vector<uint32_t>> groups;
    for (const HotRowShare& share : shares) {
      groups.push_back(share.tables);
      buckets += HotRecords::Buckets(share, tables);
    }
    if (device_collective_ == nullptr || buckets == 0) return HotRecords::Make(shares, tables);
    batch_ = nullptr;  // There may not be memory for both.
    ASSIGN_OR_RETURN(batch_, MakeBatch(groups));
    // Of scaled losses overflows decide whether rows are updated at all, and these are summed with the dense gradients.
    std::function<absl::Status()> start_sums;
    if (!step_->scales_loss()) {
      start_sums = [this] { return step_->StartSums(); };
      step_->set_sums_late();
    }
    replicates_ = true;
    return MakeGpuHotReplica({.layout = parts_.layout,
                              .shares = shares,
                              .tables = tables,
                              .samples_max = rows_full_ + 1,
                              .batch = batch_.get(),
                              .compute = &stream_,
                              .beside = &copies_,
                              .rows_summed = &step_->rows_summed(),
                              .start_sums = start_sums,
                              .collective = device_collective_.get()});
  }

  absl::Status CopyToModel() override {
    const DeviceParameters& parameters = *model_->parameters();
    parameters.Get(parts_.model->weights(), stream_);
    OptimizerStateFromGpu(&*optimizer_, parameters.layout(), parts_.optimizer, stream_);
    return absl::OkStatus();
  }

 private:
  // In the host's layout, since other workers may compute on CPUs.
  absl::Status ReduceThroughHost(Collective* collective, Sums* sums) {
    const DeviceLayout& layout = model_->parameters()->layout();
    const size_t n = parts_.model->weights().size();
    spread_.resize(static_cast<size_t>(layout.size()));
    reduced_.resize(n);
    internal::CopyToHost(spread_.data(), model_->parameters()->gradients(), spread_.size() * sizeof(float), stream_);
    stream_.Synchronize();
    layout.Collect(spread_, std::span<float>(reduced_).first(n));
    const float scale = step_->TakeGradientsScale();  // The others may have none.
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

  const BatchTrainerParts parts_;
  const Precision precision_;
  const int64_t rows_max_;
  const int64_t rows_full_;
  Stream stream_;  // Computes.
  // Copies inputs, and looks rows up, for which the host waits while a step computes.
  Stream copies_{Stream::Turn::kFirst};
  std::unique_ptr<ModelGpu> model_;
  std::optional<DenseOptimizerGpu> optimizer_;
  std::unique_ptr<DeviceBatch> batch_;   // Of training,
  std::unique_ptr<DeviceBatch> scored_;  // and of evaluation; null before the first.
  bool has_scored_ = false;
  bool load_late_ = false;   // Start loads the batch.
  bool replicates_ = false;  // Rows are a HotReplica's.
  const DeviceBatch::Input* started_ = nullptr;
  uint64_t step_number_ = 0;                             // Of the batch that has been started.
  Mirror<float> logits_ = Mirror<float>::Empty();        // [rows_max]
  std::unique_ptr<DeviceCollective> device_collective_;  // Null: gradients are summed through the host.
  std::unique_ptr<GradientReducer> reducer_;             // Over device_collective_.
  std::unique_ptr<GpuStep> step_;
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
