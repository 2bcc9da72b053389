#ifndef SPARROW_DENSE_BCE_LOSS_H_
#define SPARROW_DENSE_BCE_LOSS_H_

#include <span>

namespace sparrow {

// Binary cross-entropy from logits, computed without overflow as max(z, 0) - z y + log(1 + exp(-|z|)).
// Returns the sum over samples (a double accumulator) and writes d loss_i / d logit_i = sigmoid(z_i) - y_i.
double BceWithLogitsCpu(std::span<const float> logits /*[n]*/, std::span<const float> labels /*[n], 0 to 1*/,
                        std::span<float> logit_gradients /*[n]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_BCE_LOSS_H_
