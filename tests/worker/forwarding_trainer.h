#ifndef SPARROW_TESTS_WORKER_FORWARDING_TRAINER_H_
#define SPARROW_TESTS_WORKER_FORWARDING_TRAINER_H_

#include <memory>
#include <span>
#include <utility>

#include "worker/batch_trainer.h"

namespace sparrow {

// A trainer in front of another, which does what a test does not override.
class ForwardingTrainer : public BatchTrainer {
 public:
  explicit ForwardingTrainer(std::unique_ptr<BatchTrainer> inner) : inner_(std::move(inner)) {}

  bool computes_elsewhere() const override { return inner_->computes_elsewhere(); }
  absl::StatusOr<std::span<const float>> Forward(const PreparedBatch& prepared) override {
    return inner_->Forward(prepared);
  }
  absl::Status Load(const PreparedBatch& prepared) override { return inner_->Load(prepared); }
  absl::Status Start(const PreparedBatch& prepared, double learning_rate_factor) override {
    return inner_->Start(prepared, learning_rate_factor);
  }
  absl::StatusOr<Result> Finish() override { return inner_->Finish(); }
  void SetLossScale(float scale) override { inner_->SetLossScale(scale); }
  absl::Status Join(const Meeting& meeting) override { return inner_->Join(meeting); }
  absl::Status Reduce(Collective* collective, Sums* sums) override { return inner_->Reduce(collective, sums); }
  absl::Status UpdateDense(uint64_t samples, double learning_rate_factor) override {
    return inner_->UpdateDense(samples, learning_rate_factor);
  }
  absl::StatusOr<std::unique_ptr<HotRowStore>> MakeHotRowStore(std::span<const HotRowShare> shares,
                                                               std::span<const TableSpec> tables) override {
    return inner_->MakeHotRowStore(shares, tables);
  }
  absl::StatusOr<std::unique_ptr<HotReplica>> MakeHotReplica(std::span<const HotRowShare> shares,
                                                             std::span<const TableSpec> tables) override {
    return inner_->MakeHotReplica(shares, tables);
  }
  absl::Status CopyToModel() override { return inner_->CopyToModel(); }

 private:
  const std::unique_ptr<BatchTrainer> inner_;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_WORKER_FORWARDING_TRAINER_H_
