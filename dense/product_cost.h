#ifndef SPARROW_DENSE_PRODUCT_COST_H_
#define SPARROW_DENSE_PRODUCT_COST_H_

#include "base/cuda/operation.h"
#include "dense/product_plans.h"

namespace sparrow {

// What a product of this shape moves and computes: each matrix once, with what is added to or masked. whole: what
// follows the product (bias, ReLU, sums of columns) is a part of it; false: kernels of their own do that.
OperationCost CostOf(const ProductShape& shape, bool whole);

}  // namespace sparrow

#endif  // SPARROW_DENSE_PRODUCT_COST_H_
