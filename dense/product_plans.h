#ifndef SPARROW_DENSE_PRODUCT_PLANS_H_
#define SPARROW_DENSE_PRODUCT_PLANS_H_

// How each matrix product of a model is computed on a GPU, and the text file that remembers it from one start to the
// next. Plain C++: knows neither CUDA nor abseil, and opaque words instead of cuBLASLt's types.
//
// The file, a line each, '\n' at each end:
//   sparrow-product-plans 2
//   ENVIRONMENT                    what the choices hold for: GPU, driver, library; any text without '\n'
//   PRECISION KIND FLAGS SIZES fused|apart ALGORITHM MICROSECONDS        one a product
//   checksum 0123456789abcdef      FNV-1a of every byte before this line
// SIZES are n, in, out, the strides of x, w and y, and multiprocessors. Such as
//   bf16 forward bias,relu,mask 2048 16 512 16 16 512 0 fused 0000001000000043...(128 hexadecimal digits) 4.125
// FLAGS are joined by ',' in the order bias, relu, gelu, mask, add; '-' for none. The file is a cache: when any of this
// changes, the version in its first line does, and an old file counts for nothing.

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "dense/device_matrix.h"

namespace sparrow {

enum class ProductKind : uint8_t { kForward, kBackwardInput, kBackwardWeights };

// Everything that the choice for a product depends on, in one environment. y is [n, out], x [n, in], w [out, in].
struct ProductShape {
  Precision precision = Precision::kFloat32;
  ProductKind kind = ProductKind::kForward;
  bool bias = false;  // kForward: is added. Else: sums of the columns of y_gradients or x_gradients are wanted.
  bool relu = false;  // kForward. kBackwardInput: gradients pass a ReLU whose outputs tell where.
  bool gelu = false;  // kForward: its input is written too. kBackwardInput: gradients pass a GELU whose input is read.
  bool mask = false;  // kForward: is written. kBackwardInput: gradients pass a ReLU where it says.
  bool add = false;   // kBackwardInput, kBackwardWeights: to what is there.
  int64_t n = 0;
  int64_t in = 0;
  int64_t out = 0;
  int64_t x_stride = 0;
  int64_t w_stride = 0;
  int64_t y_stride = 0;
  int64_t multiprocessors = 0;  // For which it was chosen; 0: all.

  auto operator<=>(const ProductShape&) const = default;
};

struct ProductPlan {
  bool fused = false;  // In the product's epilogue, not by a kernel of our own: bias, ReLU, mask, sums.
  std::array<uint64_t, 8> algorithm{};  // cublasLtMatmulAlgo_t, which is opaque.
  double microseconds = 0;              // When it was chosen.

  bool operator==(const ProductPlan&) const = default;
};

using ProductPlans = std::map<ProductShape, ProductPlan>;

// The first columns of a line, up to SIZES, separated by single blanks.
std::string ProductShapeText(const ProductShape& shape);

// REQUIRES: no '\n' in `environment`.
std::string FormatProductPlans(std::string_view environment, const ProductPlans& plans);

// nullopt: the text is damaged, of another version, or from another environment; *why says which, in a few words.
std::optional<ProductPlans> ParseProductPlans(std::string_view text, std::string_view environment, std::string* why);

// Of the file at `path`: none where there is no file, nor, with a warning on stderr, where it is of no use.
ProductPlans ReadProductPlans(const std::string& path, std::string_view environment);

// Puts `plans` into the file at `path`, over those that are there for the same shapes, and keeps the others if they are
// of use in this environment. The file is replaced as a whole: a reader sees the old or the new one, never a part.
// False, with a warning on stderr: it could not be written, and the old one is as it was.
bool AddToProductPlans(const std::string& path, std::string_view environment, const ProductPlans& plans);

}  // namespace sparrow

#endif  // SPARROW_DENSE_PRODUCT_PLANS_H_
