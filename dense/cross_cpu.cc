#include <algorithm>

#include "base/check.h"
#include "dense/cross.h"
#include "dense/linear.h"

namespace sparrow {

void CrossForwardCpu(const CrossWeights& weights, ConstMatrix x0, ConstMatrix x, const CrossActivations& activations,
                     Matrix y) {
  CHECK(x0.rows == x.rows && x0.cols == x.cols && y.rows == x.rows && y.cols == x.cols);
  CHECK_EQ(static_cast<int64_t>(weights.b.size()), x.cols);
  ProductForwardCpu(x, weights.v, activations.projected);
  ProductForwardCpu(activations.projected, weights.w, activations.factor);
  const float* __restrict b = weights.b.data();
  for (int64_t i = 0; i < x.rows; ++i) {
    const float* __restrict first = x0.row(i);
    const float* __restrict in = x.row(i);
    float* __restrict factor = activations.factor.row(i);
    float* __restrict out = y.row(i);
    for (int64_t j = 0; j < x.cols; ++j) {
      factor[j] += b[j];
      out[j] = first[j] * factor[j] + in[j];
    }
  }
}

void CrossBackwardInputCpu(const CrossWeights& weights, ConstMatrix x0, const CrossActivations& activations,
                           Matrix gradients, Matrix x0_gradients, const CrossGradients& intermediate,
                           std::span<float> b_gradients) {
  CHECK(gradients.rows == x0.rows && x0_gradients.rows == x0.rows && intermediate.factor.rows == x0.rows);
  CHECK_EQ(static_cast<int64_t>(b_gradients.size()), x0.cols);
  std::fill(b_gradients.begin(), b_gradients.end(), 0.0f);
  float* __restrict sums = b_gradients.data();
  for (int64_t i = 0; i < x0.rows; ++i) {
    const float* __restrict first = x0.row(i);
    const float* __restrict factor = activations.factor.row(i);
    const float* __restrict gradient = gradients.row(i);
    float* __restrict first_gradient = x0_gradients.row(i);
    float* __restrict factor_gradient = intermediate.factor.row(i);
    for (int64_t j = 0; j < x0.cols; ++j) {
      const float g = gradient[j] * first[j];
      first_gradient[j] += gradient[j] * factor[j];
      factor_gradient[j] = g;
      sums[j] += g;
    }
  }
  ProductBackwardInputCpu(intermediate.factor, weights.w, Write::kOverwrite, intermediate.projected);
  ProductBackwardInputCpu(intermediate.projected, weights.v, Write::kAdd, gradients);
}

void CrossBackwardWeightsCpu(ConstMatrix x, ConstMatrix projected, const CrossGradients& intermediate,
                             Matrix v_gradients, Matrix w_gradients) {
  ProductBackwardWeightsCpu(intermediate.projected, x, v_gradients);
  ProductBackwardWeightsCpu(intermediate.factor, projected, w_gradients);
}

}  // namespace sparrow
