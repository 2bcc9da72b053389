#ifndef SPARROW_DENSE_STEP_TOTALS_H_
#define SPARROW_DENSE_STEP_TOTALS_H_

// What a step knows beside its gradients, as floats, so that it is summed over workers in the same breath.

#include <cstdint>

#include "base/cuda/host_device.h"

namespace sparrow {

inline constexpr int64_t kStepTotals = 4;  // Floats.

struct StepTotals {
  double loss = 0;
  uint64_t samples = 0;
  uint64_t overflows = 0;  // Workers whose gradients overflowed (dense/loss_scaler.h).
};

// The loss as a float and what that leaves out; samples and overflows, which are exact where their sums are below 2^24.
SPARROW_HOST_DEVICE inline void PutStepTotals(double loss, uint32_t samples, bool overflowed,
                                              float* totals /*[kStepTotals]*/) {
  totals[0] = static_cast<float>(loss);
  totals[1] = static_cast<float>(loss - static_cast<double>(totals[0]));
  totals[2] = static_cast<float>(samples);
  totals[3] = overflowed ? 1.0f : 0.0f;
}

inline StepTotals TakeStepTotals(const float* totals /*[kStepTotals]*/) {
  return {.loss = static_cast<double>(totals[0]) + static_cast<double>(totals[1]),
          .samples = static_cast<uint64_t>(totals[2]),
          .overflows = static_cast<uint64_t>(totals[3])};
}

// not_finite: null, or the number of gradients that overflowed.
void StepTotalsCpu(const double* loss_sum /*[1]*/, const uint32_t* samples /*[1]*/, const uint64_t* not_finite /*[1]*/,
                   float* totals /*[kStepTotals]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_STEP_TOTALS_H_
