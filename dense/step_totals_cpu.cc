#include "dense/step_totals.h"

namespace sparrow {

void StepTotalsCpu(const double* loss_sum, const uint32_t* samples, float* totals) {
  PutStepTotals(*loss_sum, *samples, totals);
}

}  // namespace sparrow
