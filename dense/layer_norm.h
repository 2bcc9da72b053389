#ifndef SPARROW_DENSE_LAYER_NORM_H_
#define SPARROW_DENSE_LAYER_NORM_H_

// Layer normalisation (Ba, Kiros, Hinton, 2016): y = (x - mean) / sqrt(variance + eps) * weight + bias, each row by
// itself.

#include <span>

#include "dense/matrix.h"
#include "dense/product.h"

namespace sparrow {

inline constexpr float kLayerNormEps = 1e-5f;  // GPT-2's.

// What backward needs of a row beside its input.
struct RowMoments {
  float mean;
  float inverse_deviation;  // 1 / sqrt(variance + eps)
};

void LayerNormForwardCpu(ConstMatrix x /*[n, width]*/, std::span<const float> weight /*[width]*/,
                         std::span<const float> bias /*[width]*/, std::span<RowMoments> moments /*[n]*/,
                         Matrix y /*[n, width]*/);

// The parameters' gradients are added to; sums are in row order within blocks that depend on n alone. x_gradients may
// be y_gradients with kOverwrite.
void LayerNormBackwardCpu(ConstMatrix y_gradients /*[n, width]*/, ConstMatrix x /*[n, width]*/,
                          std::span<const float> weight /*[width]*/, std::span<const RowMoments> moments /*[n]*/,
                          Write write, Matrix x_gradients /*[n, width]*/, std::span<float> weight_gradients /*[width]*/,
                          std::span<float> bias_gradients /*[width]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_LAYER_NORM_H_
