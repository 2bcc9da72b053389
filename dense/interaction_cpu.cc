// One sample's interaction is a product of two tiny matrices, X X^T with X [27, 16] for example, far below what a BLAS
// call costs. So: X is copied to a padded scratch (transposed for the forward pass) that stays in the first-level
// cache, and tiles of 4 rows by 2 vectors of 8 lanes are computed in registers. The forward pass computes the lower
// triangle by tiles (a few products above the diagonal are thrown away); the backward pass G X, with G symmetric and
// its diagonal 0, reads G from the lower triangle that it comes as.

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "dense/interaction.h"

namespace sparrow {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kTileRows = 4;
constexpr int64_t kTileCols = 2 * kLanes;

using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

inline Lanes Load(const float* p) {
  Lanes lanes;
  std::memcpy(&lanes, p, sizeof(lanes));
  return lanes;
}

inline void Store(float* p, Lanes lanes) { std::memcpy(p, &lanes, sizeof(lanes)); }

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// 4 by 16 sums in registers.
class Tile {
 public:
  // Row r grows by a_r times the 16 numbers at b.
  void Add(float a0, float a1, float a2, float a3, const float* b) {
    const Lanes b0 = Load(b);
    const Lanes b1 = Load(b + kLanes);
    c00_ += a0 * b0, c01_ += a0 * b1;
    c10_ += a1 * b0, c11_ += a1 * b1;
    c20_ += a2 * b0, c21_ += a2 * b1;
    c30_ += a3 * b0, c31_ += a3 * b1;
  }

  void StoreTo(float* c, int64_t stride) const {
    Store(c, c00_), Store(c + kLanes, c01_);
    Store(c + stride, c10_), Store(c + stride + kLanes, c11_);
    Store(c + 2 * stride, c20_), Store(c + 2 * stride + kLanes, c21_);
    Store(c + 3 * stride, c30_), Store(c + 3 * stride + kLanes, c31_);
  }

 private:
  Lanes c00_{}, c01_{}, c10_{}, c11_{}, c20_{}, c21_{}, c30_{}, c31_{};
};

// to[c, r] = from[r, c] for 8 by 8 numbers: interleaves neighbours, then pairs, then halves.
inline void Transpose8(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  Lanes rows[8], pairs[8], quads[8];
  for (int r = 0; r < 8; ++r) rows[r] = Load(from + r * from_stride);
  for (int r = 0; r < 8; r += 2) {
    pairs[r] = __builtin_shufflevector(rows[r], rows[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[r + 1] = __builtin_shufflevector(rows[r], rows[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int r = 0; r < 8; r += 4) {
    for (int half = 0; half < 2; ++half) {
      const Lanes a = pairs[r + half];
      const Lanes b = pairs[r + half + 2];
      quads[r + 2 * half] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      quads[r + 2 * half + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int c = 0; c < 4; ++c) {
    Store(to + c * to_stride, __builtin_shufflevector(quads[c], quads[c + 4], 0, 1, 2, 3, 8, 9, 10, 11));
    Store(to + (c + 4) * to_stride, __builtin_shufflevector(quads[c], quads[c + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

// to [cols, rows] = from [rows, cols] transposed. REQUIRES: rows a multiple of 8.
void Transpose(const float* from, int64_t rows, int64_t cols, float* to) {
  const int64_t whole = cols / kLanes * kLanes;
  for (int64_t r = 0; r < rows; r += kLanes) {
    for (int64_t c = 0; c < whole; c += kLanes) Transpose8(from + r * cols + c, cols, to + c * rows + r, rows);
    for (int64_t c = whole; c < cols; ++c) {
      for (int64_t i = r; i < r + kLanes; ++i) to[c * rows + i] = from[i * cols + c];
    }
  }
}

// Copies the vectors of a sample to rows of `to`: the bottom's output is number 0 where there is one.
void CopyVectors(const InteractionShape& shape, ConstMatrix bottom, ConstMatrix sparse, int64_t row, float* to,
                 int64_t to_stride) {
  if (shape.bottom_cols > 0) {
    std::copy_n(bottom.row(row), shape.dim, to);
    to += to_stride;
  }
  for (int64_t f = 0; f < shape.features; ++f) {
    std::copy_n(sparse.row(row) + f * shape.dim, shape.dim, to + f * to_stride);
  }
}

void CheckShapes(const InteractionShape& shape, ConstMatrix bottom, ConstMatrix sparse, ConstMatrix out) {
  CHECK(shape.bottom_cols == 0 || shape.bottom_cols == shape.dim);
  CHECK(sparse.cols == shape.features * shape.dim && out.cols == shape.outputs() && sparse.rows == out.rows);
  CHECK(shape.bottom_cols == 0 || (bottom.cols == shape.bottom_cols && bottom.rows == out.rows));
}

// Where row i of the lower triangle without its diagonal begins.
int64_t RowStart(int64_t i) { return i * (i - 1) / 2; }

// Rows i to i + 3 and 16 columns of G X. pairs: G's lower triangle by rows; x: those columns of X, with rows of 0 up to
// a multiple of 4 of them.
Tile SymmetricProduct(const float* pairs, int64_t vectors, int64_t i, const float* x, int64_t x_stride) {
  Tile tile;
  const float* left[kTileRows];  // Rows of G left of the diagonal.
  for (int64_t r = 0; r < kTileRows; ++r) left[r] = pairs + RowStart(i + r);
  for (int64_t k = 0; k < i; ++k) tile.Add(left[0][k], left[1][k], left[2][k], left[3][k], x + k * x_stride);
  for (int64_t k = i; k < i + kTileRows; ++k) {  // The square on the diagonal.
    float g[kTileRows];
    for (int64_t r = 0; r < kTileRows; ++r) {
      const int64_t row = i + r;
      g[r] = k == row ? 0 : pairs[k < row ? RowStart(row) + k : RowStart(k) + row];
    }
    tile.Add(g[0], g[1], g[2], g[3], x + k * x_stride);
  }
  for (int64_t k = i + kTileRows; k < vectors; ++k) {  // Right of the diagonal: G's columns below it.
    const float* below = pairs + RowStart(k) + i;
    tile.Add(below[0], below[1], below[2], below[3], x + k * x_stride);
  }
  return tile;
}

}  // namespace

void InteractionForwardCpu(const InteractionShape& shape, ConstMatrix bottom, ConstMatrix sparse, Matrix out) {
  CheckShapes(shape, bottom, sparse, out);
  const int64_t vectors = shape.vectors();
  const int64_t dim = shape.dim;
  const int64_t padded = RoundUp(vectors, kTileCols);
  std::vector<float> x(padded * dim);           // [vectors, dim]; the padding stays 0.
  std::vector<float> transposed(dim * padded);  // [dim, vectors]
  std::vector<float> dots(padded * padded);
  for (int64_t row = 0; row < out.rows; ++row) {
    CopyVectors(shape, bottom, sparse, row, x.data(), dim);
    Transpose(x.data(), padded, dim, transposed.data());
    for (int64_t i = 0; i < vectors; i += kTileRows) {
      const float* a = x.data() + i * dim;
      for (int64_t j = 0; j < i + kTileRows - 1; j += kTileCols) {
        Tile tile;
        const float* b = transposed.data() + j;
        for (int64_t d = 0; d < dim; ++d) tile.Add(a[d], a[dim + d], a[2 * dim + d], a[3 * dim + d], b + d * padded);
        tile.StoreTo(dots.data() + i * padded + j, padded);
      }
    }
    float* to = out.row(row);
    if (shape.bottom_cols > 0) to = std::copy_n(x.data(), dim, to);
    for (int64_t i = 1; i < vectors; ++i) to = std::copy_n(dots.data() + i * padded, i, to);
  }
}

void InteractionBackwardCpu(const InteractionShape& shape, ConstMatrix bottom, ConstMatrix sparse,
                            ConstMatrix out_gradients, Matrix bottom_gradients, Matrix sparse_gradients) {
  CheckShapes(shape, bottom, sparse, out_gradients);
  CHECK(sparse_gradients.rows == sparse.rows && sparse_gradients.cols == sparse.cols);
  CHECK(shape.bottom_cols == 0 || (bottom_gradients.rows == bottom.rows && bottom_gradients.cols == bottom.cols));
  const int64_t vectors = shape.vectors();
  const int64_t dim = shape.dim;
  const int64_t rows_padded = RoundUp(vectors, kTileRows);
  const int64_t cols_padded = RoundUp(dim, kTileCols);
  std::vector<float> x(rows_padded * cols_padded);      // [vectors, dim]; the padding stays 0.
  std::vector<float> pairs(RowStart(rows_padded + 1));  // The triangle, with rows of 0 to a multiple of 4.
  std::vector<float> result(rows_padded * cols_padded);
  for (int64_t row = 0; row < out_gradients.rows; ++row) {
    CopyVectors(shape, bottom, sparse, row, x.data(), cols_padded);
    std::copy_n(out_gradients.row(row) + shape.bottom_cols, shape.pairs(), pairs.data());
    for (int64_t i = 0; i < rows_padded; i += kTileRows) {
      for (int64_t d = 0; d < cols_padded; d += kTileCols) {
        SymmetricProduct(pairs.data(), vectors, i, x.data() + d, cols_padded)
            .StoreTo(result.data() + i * cols_padded + d, cols_padded);
      }
    }
    const float* from = result.data();
    if (shape.bottom_cols > 0) {
      const float* __restrict direct = out_gradients.row(row);
      float* __restrict to = bottom_gradients.row(row);
      for (int64_t d = 0; d < dim; ++d) to[d] = from[d] + direct[d];
      from += cols_padded;
    }
    float* to = sparse_gradients.row(row);
    for (int64_t f = 0; f < shape.features; ++f) to = std::copy_n(from + f * cols_padded, dim, to);
  }
}

}  // namespace sparrow
