#ifndef SPARROW_DENSE_MATRIX_H_
#define SPARROW_DENSE_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace sparrow {

// A row-major matrix somewhere else: views, never owns. Element (i, j) lies at data[i * stride + j], so a block of rows
// or of columns of a matrix is a matrix. T is float or const float; Matrix converts to ConstMatrix.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  MatrixView() = default;
  MatrixView(T* data, int64_t rows, int64_t cols, int64_t stride)
      : data(data), rows(rows), cols(cols), stride(stride) {}
  MatrixView(T* data, int64_t rows, int64_t cols) : MatrixView(data, rows, cols, cols) {}
  template <typename U>
  requires std::is_same_v<T, const U> MatrixView(
      const MatrixView<U>& other)  // NOLINT: a view of constants of the same elements.
      : MatrixView(other.data, other.rows, other.cols, other.stride) {}

  T* row(int64_t i) const { return data + i * stride; }
  // Rows [begin, end).
  MatrixView Rows(int64_t begin, int64_t end) const { return {data + begin * stride, end - begin, cols, stride}; }
  // Columns [begin, end).
  MatrixView Columns(int64_t begin, int64_t end) const { return {data + begin, rows, end - begin, stride}; }
};

using Matrix = MatrixView<float>;
using ConstMatrix = MatrixView<const float>;

// The whole of `values` as a matrix without gaps. REQUIRES: values.size() == rows * cols.
template <typename T>
MatrixView<T> AsMatrix(std::span<T> values, int64_t rows, int64_t cols) {
  CHECK_EQ(static_cast<int64_t>(values.size()), rows * cols);
  return {values.data(), rows, cols};
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_MATRIX_H_
