#include <cmath>
#include <limits>

#include "dense/step_gate.h"

namespace sparrow {

void GateStepCpu(const double* loss_sum, const uint64_t* not_finite, double* gradient_scale) {
  if (std::isfinite(*loss_sum) && (not_finite == nullptr || *not_finite == 0)) return;
  *gradient_scale = std::numeric_limits<double>::quiet_NaN();
}

}  // namespace sparrow
