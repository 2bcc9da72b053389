#include <span>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "worker/step_rows.h"

namespace sparrow {
namespace {

class ServerRows final : public StepRows {
 public:
  ServerRows(PsClient* client, bool ahead, const WorkerMetrics* metrics)
      : client_(*client), ahead_(ahead), metrics_(*metrics), pull_(client), push_(client) {}

  absl::Status StartPull(PreparedBatch* batch) override {
    pull_.Start({.step = batch->batch.step, .create = true, .ahead = ahead_}, &batch->partition, batch->rows);
    return absl::OkStatus();
  }
  absl::Status Continue() override {
    pull_.AskForPending();
    return absl::OkStatus();
  }
  absl::Status FinishPull(PreparedBatch* batch) override {
    RETURN_IF_ERROR(pull_.Finish());
    metrics_.rows_pulled.Add(static_cast<double>(batch->partition.rows()));
    metrics_.pull_bytes.Add(static_cast<double>(pull_.bytes()));
    return absl::OkStatus();
  }

  absl::Status PushEarly(const PreparedBatch&, double) override { return absl::OkStatus(); }
  absl::Status StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                         double learning_rate_factor) override {
    rows_ = batch.partition.rows();
    push_.Start({.step = batch.batch.step, .samples = batch.batch.rows, .learning_rate_factor = learning_rate_factor},
                batch.partition, gradients);
    return absl::OkStatus();
  }
  absl::Status StartSkip(const PreparedBatch& batch) override {
    rows_ = 0;
    push_.Start({.step = batch.batch.step, .samples = batch.batch.rows}, client_.no_rows(), {});
    return absl::OkStatus();
  }
  absl::Status FinishPush() override {
    RETURN_IF_ERROR(push_.Finish());
    metrics_.rows_pushed.Add(static_cast<double>(rows_));
    metrics_.push_bytes.Add(static_cast<double>(push_.bytes()));
    metrics_.saturated_gradients.Add(static_cast<double>(push_.saturated()));
    return absl::OkStatus();
  }

  absl::Status WriteBack(uint64_t) override { return absl::OkStatus(); }

 private:
  const PsClient& client_;
  const bool ahead_;
  const WorkerMetrics& metrics_;
  PsPull pull_;
  PsPush push_;
  uint64_t rows_ = 0;  // Of the push under way.
};

}  // namespace

std::unique_ptr<StepRows> MakeServerRows(PsClient* client, bool ahead, const WorkerMetrics* metrics) {
  return std::make_unique<ServerRows>(client, ahead, metrics);
}

}  // namespace sparrow
