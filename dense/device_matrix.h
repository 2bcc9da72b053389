#ifndef SPARROW_DENSE_DEVICE_MATRIX_H_
#define SPARROW_DENSE_DEVICE_MATRIX_H_

// What the CUDA halves of the dense layers pass to each other. Needs nothing.

#include <cstddef>
#include <cstdint>

namespace sparrow {

// How a model computes on a GPU: the type of activations, of their gradients and of the weights that products read.
// Products sum in float32 everywhere; master weights, their gradients and optimizer state are float32 everywhere.
enum class Precision {
  kFloat32,   // float, products in full float32.
  kTf32,      // float, products by tensor cores, which take 10 of the 23 bits of each factor's fraction.
  kBfloat16,  // bfloat16.
  kFloat16,   // float16, with a scaled loss.
};

constexpr size_t ElementBytes(Precision precision) {
  return precision == Precision::kFloat32 || precision == Precision::kTf32 ? 4 : 2;
}

// Matrices of a model on a GPU have their rows padded to this many columns, so that each begins at a multiple of 16
// bytes, as tensor cores want it. The padding is 0 and stays 0.
constexpr int64_t kColumnsMultiple = 8;
constexpr int64_t PaddedColumns(int64_t cols) {
  return (cols + kColumnsMultiple - 1) / kColumnsMultiple * kColumnsMultiple;
}

// A row-major matrix in GPU memory: a view, owns nothing. Element (i, j) lies at element i * stride + j of data, whose
// type the precision says.
struct DeviceMatrix {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_DEVICE_MATRIX_H_
