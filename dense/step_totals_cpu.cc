#include "dense/step_totals.h"

namespace sparrow {

void StepTotalsCpu(const double* loss_sum, const uint32_t* samples, const uint64_t* not_finite, float* totals) {
  PutStepTotals(*loss_sum, *samples, not_finite != nullptr && *not_finite != 0, totals);
}

}  // namespace sparrow
