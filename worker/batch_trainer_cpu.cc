#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "dense/gradient_norm.h"
#include "dense/reduction_terms.h"
#include "worker/batch_model.h"
#include "worker/batch_trainer.h"
#include "worker/hot_records.h"
#include "worker/sum_over_workers.h"

namespace sparrow {
namespace {

class CpuBatchTrainer final : public BatchTrainer {
 public:
  CpuBatchTrainer(const BatchTrainerParts& parts, uint64_t cut)
      : model_(parts.model),
        optimizer_(parts.optimizer),
        clip_norm_(parts.clip_norm),
        batch_model_(parts.layout, parts.model, cut) {}

  absl::StatusOr<std::span<const float>> Forward(const PreparedBatch& prepared) override {
    return batch_model_.Forward(prepared);
  }

  absl::Status Load(const PreparedBatch&) override { return absl::OkStatus(); }

  absl::Status Start(const PreparedBatch& prepared, double) override {
    prepared_ = &prepared;
    return absl::OkStatus();
  }

  absl::StatusOr<Result> Finish() override {
    const BatchModel::Result result = batch_model_.ForwardBackward(*prepared_);
    gradients_ = result.gradients;
    return Result{.loss_sum = result.loss_sum,
                  .row_gradients = result.row_gradients,
                  .forward_seconds = result.forward_seconds,
                  .backward_seconds = result.backward_seconds};
  }

  void SetLossScale(float) override {}

  absl::Status Join(const Meeting& meeting) override {
    if (meeting.collective->size() == 1) return absl::OkStatus();
    return AgreeOnReduction({.able = false}, meeting.collective).status();
  }

  absl::Status Reduce(Collective* collective, Sums* sums) override {
    if (collective->size() == 1) return absl::OkStatus();
    const size_t n = gradients_.size();
    reduced_.assign(gradients_.begin(), gradients_.end());
    RETURN_IF_ERROR(SumOverWorkers(collective, n, &reduced_, sums));
    gradients_ = {reduced_.data(), n};
    return absl::OkStatus();
  }

  absl::Status UpdateDense(uint64_t samples, double learning_rate_factor) override {
    double scale = 1.0 / static_cast<double>(samples);
    if (clip_norm_.has_value()) scale *= GradientNormCpu(gradients_, scale, {.max_norm = *clip_norm_}).scale;
    optimizer_->Step(model_->weights(), gradients_,
                     {.gradient_scale = scale, .learning_rate_factor = learning_rate_factor});
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<HotRowStore>> MakeHotRowStore(std::span<const HotRowShare> shares,
                                                               std::span<const TableSpec> tables) override {
    return MakeCpuHotRowStore(shares, tables);
  }

  absl::StatusOr<std::unique_ptr<HotReplica>> MakeHotReplica(std::span<const HotRowShare> shares,
                                                             std::span<const TableSpec> tables) override {
    return HotRecords::Make(shares, tables);
  }

  absl::Status CopyToModel() override { return absl::OkStatus(); }

 private:
  Model* const model_;
  DenseOptimizer* const optimizer_;
  const std::optional<double> clip_norm_;
  BatchModel batch_model_;
  const PreparedBatch* prepared_ = nullptr;  // Started.
  std::span<const float> gradients_;
  std::vector<float> reduced_;  // Of SumOverWorkers.
};

}  // namespace

std::unique_ptr<BatchTrainer> MakeCpuBatchTrainer(const BatchTrainerParts& parts, uint64_t cut) {
  return std::make_unique<CpuBatchTrainer>(parts, cut);
}

}  // namespace sparrow
