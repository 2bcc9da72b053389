#include "worker/sum_over_workers.h"

#include <span>

#include "base/status_macros.h"
#include "dense/step_totals.h"

namespace sparrow {

constexpr size_t kSent = 3;  // Of kStepTotals: the last is padding for GPUs.

absl::Status SumOverWorkers(Collective* collective, size_t n, std::vector<float>* values, BatchTrainer::Sums* sums) {
  values->resize(n + kStepTotals);
  PutStepTotals(sums->loss, static_cast<uint32_t>(sums->samples), values->data() + n);
  RETURN_IF_ERROR(
      Annotate(collective->AllReduceSum(std::span<float>(*values).first(n + kSent)), "reducing the gradients"));
  const StepTotals totals = TakeStepTotals(values->data() + n);
  sums->loss = totals.loss;
  sums->samples = totals.samples;
  return absl::OkStatus();
}

}  // namespace sparrow
