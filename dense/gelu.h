#ifndef SPARROW_DENSE_GELU_H_
#define SPARROW_DENSE_GELU_H_

// GELU in its tanh form (Hendrycks and Gimpel, 2016), as GPT-2 has it: 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x +
// 0.044715 x^3), which is x / (1 + exp(-2 u)): one exponential, and nothing cancels where x is far below 0. Both halves
// compile it.

#include <cmath>

#include "base/cuda/host_device.h"
#include "dense/matrix.h"

namespace sparrow {

inline constexpr float kGeluScale = 2 * 0.7978845608028654f;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715f;

SPARROW_HOST_DEVICE inline float GeluOf(float x) {
  return x / (1 + std::exp(-kGeluScale * (x + kGeluCubic * x * x * x)));
}
SPARROW_HOST_DEVICE inline float GeluDerivativeOf(float x) {
  const float share = 1 / (1 + std::exp(-kGeluScale * (x + kGeluCubic * x * x * x)));
  return share * (1 + x * (1 - share) * kGeluScale * (1 + 3 * kGeluCubic * x * x));
}

void GeluForwardCpu(ConstMatrix x /*[n, m]*/, Matrix y /*[n, m]*/);
// In place: from gradients by y to those by x.
void GeluBackwardCpu(ConstMatrix x /*[n, m]*/, Matrix gradients /*[n, m]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_GELU_H_
