#ifndef SPARROW_DENSE_PRODUCT_H_
#define SPARROW_DENSE_PRODUCT_H_

// Matrix products on the CPU. Called outside a parallel loop, a product uses all cores; inside one, the calling thread
// alone. Every extent may be 0.

#include "dense/matrix.h"

namespace sparrow {

enum class Write { kOverwrite, kAdd };

// c = a b
void ProductCpu(ConstMatrix a /*[m, k]*/, ConstMatrix b /*[k, n]*/, Write write, Matrix c /*[m, n]*/);
// c = a b^T
void ProductTransposedCpu(ConstMatrix a /*[m, k]*/, ConstMatrix b /*[n, k]*/, Write write, Matrix c /*[m, n]*/);
// c = a^T b
void TransposedProductCpu(ConstMatrix a /*[k, m]*/, ConstMatrix b /*[k, n]*/, Write write, Matrix c /*[m, n]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_PRODUCT_H_
