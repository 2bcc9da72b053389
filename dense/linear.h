#ifndef SPARROW_DENSE_LINEAR_H_
#define SPARROW_DENSE_LINEAR_H_

// A fully connected layer, and the matrix products under it. Every function accepts 0 rows. Called outside a parallel
// loop, a product uses all cores; inside one, the calling thread alone.

#include <span>

#include "dense/activation.h"
#include "dense/matrix.h"
#include "dense/product.h"

namespace sparrow {

// y = activation(x w^T + b)
void LinearForwardCpu(ConstMatrix x /*[n, in]*/, ConstMatrix w /*[out, in]*/, std::span<const float> b /*[out]*/,
                      Activation activation, Matrix y /*[n, out]*/);

// y = x w^T
void ProductForwardCpu(ConstMatrix x /*[n, in]*/, ConstMatrix w /*[out, in]*/, Matrix y /*[n, out]*/);

// The gradients of y = x w^T by its input and by its weights.
void ProductBackwardInputCpu(ConstMatrix y_gradients /*[n, out]*/, ConstMatrix w /*[out, in]*/, Write write,
                             Matrix x_gradients /*[n, in]*/);
void ProductBackwardWeightsCpu(ConstMatrix y_gradients /*[n, out]*/, ConstMatrix x /*[n, in]*/,
                               Matrix w_gradients /*[out, in], overwritten*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_LINEAR_H_
