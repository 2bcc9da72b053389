#ifndef SPARROW_DENSE_CROSS_H_
#define SPARROW_DENSE_CROSS_H_

// The low-rank cross layer of DCN V2 (Wang et al., 2021, equation 2 without experts): y = x0 * (w (v x) + b) + x, where
// * is by element. Every function accepts 0 rows.

#include <span>

#include "dense/matrix.h"

namespace sparrow {

struct CrossWeights {
  ConstMatrix v;             // [rank, in]
  ConstMatrix w;             // [in, rank]
  std::span<const float> b;  // [in]
};

// What the forward pass keeps for the backward pass.
struct CrossActivations {
  Matrix projected;  // [n, rank]: v x
  Matrix factor;     // [n, in]: w (v x) + b
};

void CrossForwardCpu(const CrossWeights& weights, ConstMatrix x0 /*[n, in]*/, ConstMatrix x /*[n, in]*/,
                     const CrossActivations& activations, Matrix y /*[n, in]*/);

// What the backward pass makes for the weights' gradients: derivatives by the intermediate values.
struct CrossGradients {
  Matrix projected;  // [n, rank]
  Matrix factor;     // [n, in]
};

// gradients: on entry by y, on return by x. x0_gradients grows by the part that comes through the product with x0 (x
// itself may be x0: that part is in `gradients`).
void CrossBackwardInputCpu(const CrossWeights& weights, ConstMatrix x0 /*[n, in]*/, const CrossActivations& activations,
                           Matrix gradients /*[n, in]*/, Matrix x0_gradients /*[n, in]*/,
                           const CrossGradients& intermediate, std::span<float> b_gradients /*[in], overwritten*/);

// The gradients of v and w, overwritten.
void CrossBackwardWeightsCpu(ConstMatrix x /*[n, in]*/, ConstMatrix projected /*[n, rank]*/,
                             const CrossGradients& intermediate, Matrix v_gradients /*[rank, in]*/,
                             Matrix w_gradients /*[in, rank]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_CROSS_H_
