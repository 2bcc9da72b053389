#ifndef SPARROW_DENSE_LAST_LAYER_H_
#define SPARROW_DENSE_LAST_LAYER_H_

// The last layer of a model, which has one output, with the loss over it: logits h w + b, binary cross-entropy of them
// (dense/bce_loss.h) and all gradients, so that the activations are read once. Both functions accept 0 rows.

#include <cstdint>
#include <span>

#include "dense/matrix.h"

namespace sparrow {

// Memory of the half that is called; float32 master weights in either.
struct LastLayer {
  const float* w = nullptr;  // [in]
  const float* b = nullptr;  // [1]
  bool relu = false;         // The activations came out of a ReLU, so their gradients are 0 where they are not above 0.
};

void LastLayerForwardCpu(ConstMatrix h /*[n, in]*/, const LastLayer& layer, std::span<float> logits /*[n]*/);

struct LastLayerGradients {
  Matrix h;            // [n, in]
  std::span<float> w;  // [in]
  float* b = nullptr;  // [1]
};

// Returns the sum of losses over the first `samples` rows and overwrites the gradients of that sum, multiplied by
// loss_scale. Rows from `samples` on count for nothing: their gradients are 0, whatever their labels; their logits are
// computed, unless `logits` is empty.
double LastLayerLossCpu(ConstMatrix h /*[n, in]*/, const LastLayer& layer, std::span<const float> labels /*[n]*/,
                        int64_t samples, float loss_scale, std::span<float> logits /*[n], or empty*/,
                        const LastLayerGradients& gradients);

}  // namespace sparrow

#endif  // SPARROW_DENSE_LAST_LAYER_H_
