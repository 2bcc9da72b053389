#ifndef SPARROW_DENSE_PLAIN_PRODUCT_CUH_
#define SPARROW_DENSE_PLAIN_PRODUCT_CUH_

// A matrix product for any shape, in no memory but its operands': what is left where cuBLASLt has none for a shape, or
// no room for its kernels. Right and slow.

#include <cstdint>

#include "base/cuda/launch.cuh"
#include "dense/precision.cuh"
#include "dense/product_plans.h"

namespace sparrow {

constexpr int kPlainBlock = 256;

// d[i, j] = (add: d[i, j] +) the sum over k of left[i, k] right[k, j]; steps in elements.
struct PlainArguments {
  const void* left = nullptr;
  const void* right = nullptr;
  void* d = nullptr;
  int64_t rows = 0, cols = 0, terms = 0;
  int64_t left_row = 0, left_term = 0;
  int64_t right_term = 0, right_col = 0;
  int64_t d_row = 0;
  bool add = false;
};

// One thread an element of d, consecutive threads side by side in a row; each sums in the order of k. Bytes moved: two
// elements a term, which neighbours share by way of the caches. Bound by the latency of those reads.
template <typename T, typename D>
__global__ void __launch_bounds__(kPlainBlock) PlainProductKernel(PlainArguments a) {
  const int64_t element = int64_t{blockIdx.x} * kPlainBlock + threadIdx.x;
  if (element >= a.rows * a.cols) return;
  const int64_t i = element / a.cols;
  const int64_t j = element % a.cols;
  const T* const left = static_cast<const T*>(a.left) + i * a.left_row;
  const T* const right = static_cast<const T*>(a.right) + j * a.right_col;
  D* const d = static_cast<D*>(a.d) + i * a.d_row + j;
  float sum = 0;
  for (int64_t k = 0; k < a.terms; ++k) sum += ToFloat(left[k * a.left_term]) * ToFloat(right[k * a.right_term]);
  if (a.add) sum += ToFloat(*d);
  *d = FromFloat<D>(sum);
}

// The product alone, with nothing that follows it. Operands as dense/linear_product.cuh's Call has them: `a` the
// weights, or the inputs for the weights' gradients; `b` the inputs, or the gradients by the outputs.
inline void LaunchPlainProduct(const ProductShape& shape, const void* a, const void* b, void* d, const Stream& stream) {
  PlainArguments p{.left = b, .right = a, .d = d, .add = shape.add};
  switch (shape.kind) {
    case ProductKind::kForward:  // x w^T
      p.rows = shape.n, p.cols = shape.out, p.terms = shape.in;
      p.left_row = shape.x_stride, p.left_term = 1, p.right_term = 1, p.right_col = shape.w_stride;
      p.d_row = shape.y_stride;
      break;
    case ProductKind::kBackwardInput:  // y_gradients w
      p.rows = shape.n, p.cols = shape.in, p.terms = shape.out;
      p.left_row = shape.y_stride, p.left_term = 1, p.right_term = shape.w_stride, p.right_col = 1;
      p.d_row = shape.x_stride;
      break;
    case ProductKind::kBackwardWeights:  // y_gradients^T x
      p.rows = shape.out, p.cols = shape.in, p.terms = shape.n;
      p.left_row = 1, p.left_term = shape.y_stride, p.right_term = shape.x_stride, p.right_col = 1;
      p.d_row = shape.w_stride;
      break;
  }
  const int64_t blocks = (p.rows * p.cols + kPlainBlock - 1) / kPlainBlock;
  WithElementType(shape.precision, [&](auto zero) {
    using T = decltype(zero);
    if (shape.kind == ProductKind::kBackwardWeights) {
      Launch(PlainProductKernel<T, float>, blocks, kPlainBlock, stream, p);
    } else {
      Launch(PlainProductKernel<T, T>, blocks, kPlainBlock, stream, p);
    }
  });
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_PLAIN_PRODUCT_CUH_
