#ifndef SPARROW_DENSE_GRADIENT_NORM_H_
#define SPARROW_DENSE_GRADIENT_NORM_H_

// Clipping by the global norm (Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks",
// 2013): if the L2 norm of all gradients together passes a bound, all are scaled by one factor.

#include <cmath>
#include <limits>
#include <span>

#include "base/cuda/host_device.h"

namespace sparrow {

struct ClipOptions {
  double max_norm = std::numeric_limits<double>::infinity();  // Infinite: the norm is found and nothing is scaled.
  double eps = 1e-6;
};

struct GradientClip {
  double norm = 0;   // Of the gradients as the optimizer takes them, before clipping.
  double scale = 1;  // min(1, max_norm / (norm + eps)); NaN if the norm is, so that NaN is not hidden.
};

SPARROW_HOST_DEVICE inline GradientClip ClipOf(double sum_of_squares, double gradient_scale,
                                               const ClipOptions& options) {
  const double norm = std::abs(gradient_scale) * std::sqrt(sum_of_squares);
  const double scale = options.max_norm / (norm + options.eps);
  return {norm, scale > 1 ? 1 : scale};
}

// Summed in double precision in an order that does not depend on the number of threads.
double SumOfSquaresCpu(std::span<const float> gradients);

// The norm of gradients[i] * gradient_scale.
inline GradientClip GradientNormCpu(std::span<const float> gradients, double gradient_scale,
                                    const ClipOptions& options) {
  return ClipOf(SumOfSquaresCpu(gradients), gradient_scale, options);
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_GRADIENT_NORM_H_
