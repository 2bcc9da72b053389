#ifndef SPARROW_DENSE_SOFTMAX_LOSS_H_
#define SPARROW_DENSE_SOFTMAX_LOSS_H_

#include <cstdint>
#include <span>

#include "dense/matrix.h"

namespace sparrow {

// Cross-entropy of softmax(logits) and one right class a row: returns the sum over rows of log(sum_j exp(logit_j)) -
// logit_target, in a double accumulator and in row order. REQUIRES: targets < logits.cols.
double SoftmaxLossCpu(ConstMatrix logits /*[n, classes]*/, std::span<const uint16_t> targets /*[n]*/);

// The same, and replaces the logits by the derivatives of that sum.
double SoftmaxLossAndGradientsCpu(Matrix logits /*[n, classes]*/, std::span<const uint16_t> targets /*[n]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_SOFTMAX_LOSS_H_
