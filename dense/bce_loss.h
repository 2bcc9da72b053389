#ifndef SPARROW_DENSE_BCE_LOSS_H_
#define SPARROW_DENSE_BCE_LOSS_H_

#include <cmath>
#include <span>

#include "base/cuda/host_device.h"

namespace sparrow {

// Binary cross-entropy of one sample from its logit, computed without overflow as max(z, 0) - z y + log(1 + exp(-|z|)).
// Both halves compile it.
struct BceTerm {
  double loss;
  float gradient;  // d loss / d logit = sigmoid(z) - y
};
SPARROW_HOST_DEVICE inline BceTerm BceTermOf(float logit, float label) {
  const double z = logit;
  const double y = label;
  const double e = std::exp(-std::abs(z));  // In (0, 1].
  return {(z > 0 ? z : 0) - z * y + std::log1p(e), static_cast<float>((z >= 0 ? 1 : e) / (1 + e) - y)};
}

// Returns the sum over samples (a double accumulator) and writes the gradient of each.
double BceWithLogitsCpu(std::span<const float> logits /*[n]*/, std::span<const float> labels /*[n], 0 to 1*/,
                        std::span<float> logit_gradients /*[n]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_BCE_LOSS_H_
