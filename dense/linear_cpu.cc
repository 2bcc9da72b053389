#include "dense/linear.h"

namespace sparrow {

void LinearForwardCpu(ConstMatrix x, ConstMatrix w, std::span<const float> b, Activation activation, Matrix y) {
  ProductForwardCpu(x, w, y);
  BiasActivationForwardCpu(activation, b, y);
}

void ProductForwardCpu(ConstMatrix x, ConstMatrix w, Matrix y) { ProductTransposedCpu(x, w, Write::kOverwrite, y); }

void ProductBackwardInputCpu(ConstMatrix y_gradients, ConstMatrix w, Write write, Matrix x_gradients) {
  ProductCpu(y_gradients, w, write, x_gradients);
}

void ProductBackwardWeightsCpu(ConstMatrix y_gradients, ConstMatrix x, Matrix w_gradients) {
  TransposedProductCpu(y_gradients, x, Write::kOverwrite, w_gradients);
}

}  // namespace sparrow
