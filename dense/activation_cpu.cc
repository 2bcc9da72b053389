#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "dense/activation.h"

namespace sparrow {

void BiasActivationForwardCpu(Activation activation, std::span<const float> bias, Matrix y) {
  CHECK_EQ(static_cast<int64_t>(bias.size()), y.cols);
  const float* __restrict b = bias.data();
  for (int64_t i = 0; i < y.rows; ++i) {
    float* __restrict row = y.row(i);
    if (activation == Activation::kRelu) {
      for (int64_t j = 0; j < y.cols; ++j) {
        const float x = row[j] + b[j];
        row[j] = x < 0 ? 0 : x;
      }
    } else {
      for (int64_t j = 0; j < y.cols; ++j) row[j] += b[j];
    }
  }
}

void BiasActivationBackwardCpu(Activation activation, ConstMatrix y, Matrix y_gradients,
                               std::span<float> bias_gradients) {
  CHECK_EQ(static_cast<int64_t>(bias_gradients.size()), y_gradients.cols);
  CHECK(y.rows == y_gradients.rows && y.cols == y_gradients.cols);
  float* __restrict sums = bias_gradients.data();
  std::fill(bias_gradients.begin(), bias_gradients.end(), 0.0f);
  for (int64_t i = 0; i < y.rows; ++i) {
    const float* __restrict out = y.row(i);
    float* __restrict gradient = y_gradients.row(i);
    if (activation == Activation::kRelu) {
      for (int64_t j = 0; j < y.cols; ++j) {
        const float g = out[j] <= 0 ? 0 : gradient[j];
        gradient[j] = g;
        sums[j] += g;
      }
    } else {
      for (int64_t j = 0; j < y.cols; ++j) sums[j] += gradient[j];
    }
  }
}

double Sigmoid(double logit) {
  const double e = std::exp(-std::abs(logit));
  return logit >= 0 ? 1 / (1 + e) : e / (1 + e);
}

}  // namespace sparrow
