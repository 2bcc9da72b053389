// Products by oneDNN's sgemm. On the shapes of recommendation MLPs it is as fast as oneDNN's matmul primitive and
// faster than its inner product (bench/dense), and it needs no primitive made and kept for each shape.

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "base/check.h"
#include "dense/linear.h"

namespace sparrow {
namespace {

// c = a b + beta c in row-major order, a [m, k] and b [k, n] after the transpositions.
void Gemm(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, ConstMatrix a, ConstMatrix b, float beta,
          Matrix c) {
  const dnnl_status_t status =
      dnnl_sgemm(transpose_a, transpose_b, m, n, k, 1.0f, a.data, a.stride, b.data, b.stride, beta, c.data, c.stride);
  CHECK_EQ(static_cast<int>(status), static_cast<int>(dnnl_success)) << "sgemm of " << m << " x " << n << " x " << k;
}

}  // namespace

void LinearForwardCpu(ConstMatrix x, ConstMatrix w, std::span<const float> b, Activation activation, Matrix y) {
  ProductForwardCpu(x, w, y);
  BiasActivationForwardCpu(activation, b, y);
}

void ProductForwardCpu(ConstMatrix x, ConstMatrix w, Matrix y) {
  CHECK(x.rows == y.rows && x.cols == w.cols && y.cols == w.rows);
  if (x.rows == 0) return;
  Gemm('N', 'T', x.rows, w.rows, w.cols, x, w, 0, y);
}

void ProductBackwardInputCpu(ConstMatrix y_gradients, ConstMatrix w, Write write, Matrix x_gradients) {
  CHECK(x_gradients.rows == y_gradients.rows && x_gradients.cols == w.cols && y_gradients.cols == w.rows);
  if (y_gradients.rows == 0) return;
  Gemm('N', 'N', y_gradients.rows, w.cols, w.rows, y_gradients, w, write == Write::kAdd ? 1 : 0, x_gradients);
}

void ProductBackwardWeightsCpu(ConstMatrix y_gradients, ConstMatrix x, Matrix w_gradients) {
  CHECK(x.rows == y_gradients.rows && x.cols == w_gradients.cols && y_gradients.cols == w_gradients.rows);
  if (x.rows == 0) {
    for (int64_t i = 0; i < w_gradients.rows; ++i) std::fill_n(w_gradients.row(i), w_gradients.cols, 0.0f);
    return;
  }
  Gemm('T', 'N', w_gradients.rows, w_gradients.cols, x.rows, y_gradients, x, 0, w_gradients);
}

}  // namespace sparrow
