#ifndef SPARROW_DENSE_ACTIVATION_H_
#define SPARROW_DENSE_ACTIVATION_H_

#include <span>

#include "dense/matrix.h"

namespace sparrow {

enum class Activation {
  kIdentity,
  kRelu,  // max(x, 0); NaN stays NaN, so that a diverged model is seen. Its derivative at 0 is 0.
};

// y = activation(y + bias), in place. `bias` is added to every row.
void BiasActivationForwardCpu(Activation activation, std::span<const float> bias /*[out]*/, Matrix y /*[n, out]*/);

// In place, from the derivatives by the outputs to those by the activation's inputs, and their sums over rows, which
// are the bias's gradients: one pass. y: the outputs.
void BiasActivationBackwardCpu(Activation activation, ConstMatrix y /*[n, out]*/, Matrix y_gradients /*[n, out]*/,
                               std::span<float> bias_gradients /*[out], overwritten*/);

// 1 / (1 + exp(-logit)), without overflow.
double Sigmoid(double logit);

}  // namespace sparrow

#endif  // SPARROW_DENSE_ACTIVATION_H_
