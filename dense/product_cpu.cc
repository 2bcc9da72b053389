// By oneDNN's sgemm. On the shapes of recommendation MLPs it is as fast as oneDNN's matmul primitive and faster than
// its inner product (bench/dense), and it needs no primitive made and kept for each shape.

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "base/check.h"
#include "dense/product.h"

namespace sparrow {
namespace {

// c = a b, in row-major order, a [m, k] and b [k, n] after the transpositions.
void Gemm(char transpose_a, char transpose_b, int64_t k, ConstMatrix a, ConstMatrix b, Write write, Matrix c) {
  if (c.rows == 0 || c.cols == 0) return;
  if (k == 0) {
    if (write == Write::kAdd) return;
    for (int64_t i = 0; i < c.rows; ++i) std::fill_n(c.row(i), c.cols, 0.0f);
    return;
  }
  const dnnl_status_t status = dnnl_sgemm(transpose_a, transpose_b, c.rows, c.cols, k, 1.0f, a.data, a.stride, b.data,
                                          b.stride, write == Write::kAdd ? 1.0f : 0.0f, c.data, c.stride);
  CHECK_EQ(static_cast<int>(status), static_cast<int>(dnnl_success))
      << "sgemm of " << c.rows << " x " << c.cols << " x " << k;
}

}  // namespace

void ProductCpu(ConstMatrix a, ConstMatrix b, Write write, Matrix c) {
  CHECK(a.cols == b.rows && c.rows == a.rows && c.cols == b.cols);
  Gemm('N', 'N', a.cols, a, b, write, c);
}

void ProductTransposedCpu(ConstMatrix a, ConstMatrix b, Write write, Matrix c) {
  CHECK(a.cols == b.cols && c.rows == a.rows && c.cols == b.rows);
  Gemm('N', 'T', a.cols, a, b, write, c);
}

void TransposedProductCpu(ConstMatrix a, ConstMatrix b, Write write, Matrix c) {
  CHECK(a.rows == b.rows && c.rows == a.cols && c.cols == b.cols);
  Gemm('T', 'N', a.rows, a, b, write, c);
}

}  // namespace sparrow
