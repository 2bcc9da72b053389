#include "worker/sum_over_workers.h"

#include <span>

#include "base/status_macros.h"
#include "dense/step_totals.h"

namespace sparrow {

absl::Status SumOverWorkers(Collective* collective, size_t n, std::vector<float>* values, BatchTrainer::Sums* sums) {
  values->resize(n + kStepTotals);
  PutStepTotals(sums->loss, static_cast<uint32_t>(sums->samples), sums->overflows > 0, values->data() + n);
  RETURN_IF_ERROR(Annotate(collective->AllReduceSum(*values), "reducing the gradients"));
  const StepTotals totals = TakeStepTotals(values->data() + n);
  sums->loss = totals.loss;
  sums->samples = totals.samples;
  sums->overflows = totals.overflows;
  return absl::OkStatus();
}

}  // namespace sparrow
