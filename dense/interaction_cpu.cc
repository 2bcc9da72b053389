// One sample's interaction is a product of two tiny matrices, X X^T with X [27, 16] for example, far below what a BLAS
// call costs. So: X is copied to a padded scratch (transposed for the forward pass) that stays in the first-level
// cache, and blocks of 4 rows by 2 vectors of 8 lanes are computed in registers. The forward pass computes the lower
// triangle by blocks (a few products above the diagonal are thrown away), the backward pass G X with the symmetric G.

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "dense/interaction.h"

namespace sparrow {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kRowsBlock = 4;
constexpr int64_t kColsBlock = 2 * kLanes;

using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

Lanes Load(const float* p) {
  Lanes lanes;
  std::memcpy(&lanes, p, sizeof(lanes));
  return lanes;
}

void Store(float* p, Lanes lanes) { std::memcpy(p, &lanes, sizeof(lanes)); }

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// c[0..4, 0..16] = a[0..4, 0..depth] b[0..depth, 0..16]
void MultiplyBlock(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth, float* c,
                   int64_t c_stride) {
  Lanes c00{}, c01{}, c10{}, c11{}, c20{}, c21{}, c30{}, c31{};
  for (int64_t k = 0; k < depth; ++k) {
    const Lanes b0 = Load(b + k * b_stride);
    const Lanes b1 = Load(b + k * b_stride + kLanes);
    const float a0 = a[k], a1 = a[a_stride + k], a2 = a[2 * a_stride + k], a3 = a[3 * a_stride + k];
    c00 += a0 * b0, c01 += a0 * b1;
    c10 += a1 * b0, c11 += a1 * b1;
    c20 += a2 * b0, c21 += a2 * b1;
    c30 += a3 * b0, c31 += a3 * b1;
  }
  Store(c, c00), Store(c + kLanes, c01);
  Store(c + c_stride, c10), Store(c + c_stride + kLanes, c11);
  Store(c + 2 * c_stride, c20), Store(c + 2 * c_stride + kLanes, c21);
  Store(c + 3 * c_stride, c30), Store(c + 3 * c_stride + kLanes, c31);
}

// Vector v of a sample: the bottom's output is number 0 where there is one.
const float* VectorOf(const InteractionShape& shape, ConstMatrix bottom, ConstMatrix sparse, int64_t row, int64_t v) {
  if (shape.bottom_cols == 0) return sparse.row(row) + v * shape.dim;
  return v == 0 ? bottom.row(row) : sparse.row(row) + (v - 1) * shape.dim;
}

void CheckShapes(const InteractionShape& shape, ConstMatrix bottom, ConstMatrix sparse, ConstMatrix out) {
  CHECK(shape.bottom_cols == 0 || shape.bottom_cols == shape.dim);
  CHECK(sparse.cols == shape.features * shape.dim && out.cols == shape.outputs() && sparse.rows == out.rows);
  CHECK(shape.bottom_cols == 0 || (bottom.cols == shape.bottom_cols && bottom.rows == out.rows));
}

}  // namespace

void InteractionForwardCpu(const InteractionShape& shape, ConstMatrix bottom, ConstMatrix sparse, Matrix out) {
  CheckShapes(shape, bottom, sparse, out);
  const int64_t vectors = shape.vectors();
  const int64_t dim = shape.dim;
  const int64_t rows_padded = RoundUp(vectors, kRowsBlock);
  const int64_t cols_padded = RoundUp(vectors, kColsBlock);
  std::vector<float> x(rows_padded * dim);           // [vectors, dim]; the padding stays 0.
  std::vector<float> transposed(dim * cols_padded);  // [dim, vectors]
  std::vector<float> dots(rows_padded * cols_padded);
  for (int64_t row = 0; row < out.rows; ++row) {
    for (int64_t v = 0; v < vectors; ++v) {
      const float* __restrict from = VectorOf(shape, bottom, sparse, row, v);
      std::copy_n(from, dim, x.data() + v * dim);
      float* __restrict to = transposed.data() + v;
      for (int64_t d = 0; d < dim; ++d) to[d * cols_padded] = from[d];
    }
    for (int64_t i = 0; i < rows_padded; i += kRowsBlock) {
      for (int64_t j = 0; j < i + kRowsBlock - 1; j += kColsBlock) {
        MultiplyBlock(x.data() + i * dim, dim, transposed.data() + j, cols_padded, dim,
                      dots.data() + i * cols_padded + j, cols_padded);
      }
    }
    float* to = out.row(row);
    if (shape.bottom_cols > 0) to = std::copy_n(x.data(), dim, to);
    for (int64_t i = 1; i < vectors; ++i) to = std::copy_n(dots.data() + i * cols_padded, i, to);
  }
}

void InteractionBackwardCpu(const InteractionShape& shape, ConstMatrix bottom, ConstMatrix sparse,
                            ConstMatrix out_gradients, Matrix bottom_gradients, Matrix sparse_gradients) {
  CheckShapes(shape, bottom, sparse, out_gradients);
  CHECK(sparse_gradients.rows == sparse.rows && sparse_gradients.cols == sparse.cols);
  CHECK(shape.bottom_cols == 0 || (bottom_gradients.rows == bottom.rows && bottom_gradients.cols == bottom.cols));
  const int64_t vectors = shape.vectors();
  const int64_t dim = shape.dim;
  const int64_t rows_padded = RoundUp(vectors, kRowsBlock);
  const int64_t cols_padded = RoundUp(dim, kColsBlock);
  std::vector<float> x(vectors * cols_padded);      // [vectors, dim]; the padding stays 0.
  std::vector<float> pairs(rows_padded * vectors);  // G, symmetric, its diagonal and padding 0.
  std::vector<float> result(rows_padded * cols_padded);
  for (int64_t row = 0; row < out_gradients.rows; ++row) {
    for (int64_t v = 0; v < vectors; ++v) {
      std::copy_n(VectorOf(shape, bottom, sparse, row, v), dim, x.data() + v * cols_padded);
    }
    const float* from = out_gradients.row(row) + shape.bottom_cols;
    for (int64_t i = 1; i < vectors; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        pairs[i * vectors + j] = *from;
        pairs[j * vectors + i] = *from++;
      }
    }
    for (int64_t i = 0; i < rows_padded; i += kRowsBlock) {
      for (int64_t d = 0; d < cols_padded; d += kColsBlock) {
        MultiplyBlock(pairs.data() + i * vectors, vectors, x.data() + d, cols_padded, vectors,
                      result.data() + i * cols_padded + d, cols_padded);
      }
    }
    int64_t v = 0;
    if (shape.bottom_cols > 0) {
      const float* __restrict direct = out_gradients.row(row);
      float* __restrict to = bottom_gradients.row(row);
      for (int64_t d = 0; d < dim; ++d) to[d] = result[d] + direct[d];
      v = 1;
    }
    float* to = sparse_gradients.row(row);
    for (; v < vectors; ++v) to = std::copy_n(result.data() + v * cols_padded, dim, to);
  }
}

}  // namespace sparrow
