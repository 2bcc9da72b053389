#ifndef SPARROW_TESTS_DENSE_LINEAR_GPU_CASES_H_
#define SPARROW_TESTS_DENSE_LINEAR_GPU_CASES_H_

// A layer's three products on a GPU, and what the CPU half says that they must be.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "dense/linear.h"
#include "dense/linear_gpu.h"
#include "tests/dense/device_values.h"

namespace sparrow {

using testing::OnDevice;
using testing::Values;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kUntouched = -123.0f;  // Exact in each type.

// Of the size of each number that was rounded to the output's type, and of the sum of a result's terms' absolute
// values. Both halves add in float32 in different orders: at most some thousand roundings of 6e-8 that mostly cancel.
// tf32 cuts each factor to 10 bits of fraction, which is up to 2^-10 of it.
struct Tolerance {
  double rounding;
  double terms;
};
inline Tolerance ToleranceOf(Precision precision, bool float_output) {
  const double terms = precision == Precision::kTf32 ? 2e-3 : 2e-6;
  if (float_output || ElementBytes(precision) == 4) return {0x1p-23, terms};
  return {precision == Precision::kBfloat16 ? 0x1.01p-8 : 0x1.01p-11, terms};
}

inline bool MaskBit(const std::vector<uint8_t>& mask, int64_t cols, int64_t i, int64_t j) {
  const int64_t pitch = static_cast<int64_t>(ReluMaskBytes(1, cols));
  return (mask[static_cast<size_t>(i * pitch + j / 8)] >> (j % 8) & 1) != 0;
}

// `actual` near `expected`, whose terms' absolute values sum up to `absolute`; gaps untouched. rounded(i, j): the sum
// of the absolute values of everything that was rounded on the way.
inline void ExpectNear(const Values& actual, const Matrix& expected, const Matrix& absolute, Tolerance tolerance,
                       const std::function<double(int64_t, int64_t)>& rounded) {
  for (int64_t i = 0; i < actual.rows; ++i) {
    for (int64_t j = 0; j < actual.stride; ++j) {
      if (j >= actual.cols) {
        ASSERT_EQ(actual.at(i, j), kUntouched) << "the gap behind row " << i << " was written";
        continue;
      }
      const double near = tolerance.rounding * rounded(i, j) + tolerance.terms * absolute.row(i)[j];
      ASSERT_NEAR(actual.at(i, j), expected.row(i)[j], near) << "row " << i << ", column " << j;
    }
  }
}

struct Shape {
  int64_t n, in, out;
};

inline ProductsGpu MakeProducts(const ProductsGpu::Options& options, const Stream& stream) {
  std::optional<ProductsGpu> products = ProductsGpu::Make(options, stream);
  CHECK(products.has_value()) << "the GPU is out of memory";
  return *std::move(products);
}

struct Flags {
  bool bias, relu, mask;
};
constexpr Flags kFlags[] = {
    {true, true, true}, {true, true, false}, {true, false, false}, {false, true, true}, {false, false, false}};

struct ForwardResult {
  Values y;
  std::vector<uint8_t> mask;
  bool operator==(const ForwardResult& other) const {
    return std::memcmp(y.elements.data(), other.y.elements.data(), y.elements.size() * sizeof(float)) == 0 &&
           mask == other.mask;
  }
};

// Operands of a layer with gaps behind their rows, no two strides alike.
struct Layer {
  Layer(Precision precision, const Shape& shape, uint64_t seed)
      : x(Values::Random(precision, shape.n, shape.in, shape.in + 8, seed)),
        w(Values::Random(precision, shape.out, shape.in, shape.in + 16, seed + 1)),
        b(Values::Random(precision, 1, shape.out, shape.out, seed + 2)),
        y_gradients(Values::Random(precision, shape.n, shape.out, shape.out + 24, seed + 3)) {
    for (int64_t i = 0; i < shape.n; i += 5) x.at(i, 3) = 0;  // Where a ReLU does not pass.
  }
  Values x, w, b, y_gradients;
};

inline ForwardResult Forward(ProductsGpu* products, const Layer& layer, const Flags& flags, const Stream& stream) {
  const Precision precision = layer.x.precision;
  const OnDevice x = layer.x.ToDevice(stream), w = layer.w.ToDevice(stream), b = layer.b.ToDevice(stream);
  ForwardResult result{Values(precision, layer.x.rows, layer.w.rows, layer.w.rows + 32, kUntouched),
                       std::vector<uint8_t>(ReluMaskBytes(layer.x.rows, layer.w.rows), 0x55)};
  const OnDevice y = result.y.ToDevice(stream);
  DeviceBuffer<uint8_t> mask = Upload(result.mask, stream);
  products->Forward(x.matrix, w.matrix, flags.bias ? b.matrix.data : nullptr, flags.relu, y.matrix,
                    flags.mask ? mask.data() : nullptr, stream);
  result.y.FromDevice(y, stream);
  result.mask = Download(mask, stream);
  return result;
}

inline void ExpectForward(const Layer& layer, const Flags& flags, const ForwardResult& result) {
  const size_t size = static_cast<size_t>(layer.x.rows * layer.w.rows);
  const Values absolute_x = layer.x.Absolute(), absolute_w = layer.w.Absolute(), absolute_b = layer.b.Absolute();
  std::vector<float> expected(size), absolute(size);
  const Matrix e = AsMatrix(std::span(expected), layer.x.rows, layer.w.rows);
  const Matrix a = AsMatrix(std::span(absolute), layer.x.rows, layer.w.rows);
  std::vector<float> bias = layer.b.elements;
  if (!flags.bias) std::fill(bias.begin(), bias.end(), 0.0f);
  LinearForwardCpu(layer.x.view(), layer.w.view(), bias, flags.relu ? Activation::kRelu : Activation::kIdentity, e);
  LinearForwardCpu(absolute_x.view(), absolute_w.view(), absolute_b.elements, Activation::kIdentity, a);
  std::vector<float> before(size);  // The ReLU.
  const Matrix b = AsMatrix(std::span(before), layer.x.rows, layer.w.rows);
  LinearForwardCpu(layer.x.view(), layer.w.view(), bias, Activation::kIdentity, b);
  // The product may be rounded before the bias, whose size is at most 1.05, is added.
  const Tolerance tolerance = ToleranceOf(layer.x.precision, false);
  const auto rounded = [&](int64_t i, int64_t j) { return 2 * std::abs(b.row(i)[j]) + 1.05; };
  ExpectNear(result.y, e, a, tolerance, rounded);
  if (!flags.mask) return;
  for (int64_t i = 0; i < result.y.rows; ++i) {
    for (int64_t j = 0; j < result.y.cols; ++j) {
      const double near = tolerance.rounding * rounded(i, j) + tolerance.terms * a.row(i)[j];
      if (std::abs(b.row(i)[j]) <= near) continue;  // Either.
      ASSERT_EQ(MaskBit(result.mask, result.y.cols, i, j), b.row(i)[j] > 0) << "row " << i << ", column " << j;
    }
  }
}

// BackwardInput, BackwardThroughRelu with a mask, without, and without sums.
enum class InputMode { kPlain, kMask, kAdd, kThroughMask, kThroughOutputs, kThroughAlone, kCount };

inline bool IsThrough(InputMode mode) { return mode >= InputMode::kThroughMask; }

struct InputResult {
  Values x_gradients;
  std::vector<float> b_gradients;
  bool operator==(const InputResult& other) const {
    return x_gradients.elements == other.x_gradients.elements && b_gradients == other.b_gradients;
  }
};

inline InputResult BackwardInput(ProductsGpu* products, const Layer& layer, InputMode mode,
                                 const std::vector<uint8_t>& mask, const Values& before, const Stream& stream) {
  const OnDevice gradients = layer.y_gradients.ToDevice(stream), w = layer.w.ToDevice(stream);
  const OnDevice x = layer.x.ToDevice(stream), x_gradients = before.ToDevice(stream);
  const DeviceBuffer<uint8_t> device_mask = Upload(mask, stream);
  InputResult result{before, std::vector<float>(layer.x.cols, kUntouched)};
  DeviceBuffer<float> sums = Upload(result.b_gradients, stream);
  if (IsThrough(mode)) {
    products->BackwardThroughRelu(gradients.matrix, w.matrix, x.matrix,
                                  mode == InputMode::kThroughMask ? device_mask.data() : nullptr, x_gradients.matrix,
                                  mode == InputMode::kThroughAlone ? nullptr : sums.data(), stream);
  } else {
    products->BackwardInput(gradients.matrix, w.matrix, mode == InputMode::kMask ? device_mask.data() : nullptr,
                            mode == InputMode::kAdd, x_gradients.matrix, stream);
  }
  result.x_gradients.FromDevice(x_gradients, stream);
  result.b_gradients = Download(sums, stream);
  return result;
}

// What is added to, and the mask, random; the gaps untouched.
inline std::pair<Values, std::vector<uint8_t>> BeforeBackwardInput(const Layer& layer, uint64_t seed) {
  Values before = Values::Random(layer.x.precision, layer.x.rows, layer.x.cols, layer.x.cols + 40, seed);
  for (float& value : before.elements) value = std::isnan(value) ? kUntouched : value;
  std::vector<uint8_t> mask(ReluMaskBytes(layer.x.rows, layer.x.cols));
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<uint8_t>(RandomBits(seed, i));
  return {before, mask};
}

// Sums of columns of `values` and of their absolute values, in double.
inline std::pair<std::vector<double>, std::vector<double>> SumsOfColumns(const Values& values) {
  std::vector<double> sums(static_cast<size_t>(values.cols)), absolute(sums.size());
  for (int64_t i = 0; i < values.rows; ++i) {
    for (int64_t j = 0; j < values.cols; ++j) {
      sums[static_cast<size_t>(j)] += values.at(i, j);
      absolute[static_cast<size_t>(j)] += std::abs(values.at(i, j));
    }
  }
  return {sums, absolute};
}

inline void ExpectBackwardInput(const Layer& layer, InputMode mode, const std::vector<uint8_t>& mask,
                                const Values& before, const InputResult& result) {
  const bool add = mode == InputMode::kAdd;
  const Write write = add ? Write::kAdd : Write::kOverwrite;
  const int64_t rows = layer.x.rows, cols = layer.x.cols;
  std::vector<float> expected(static_cast<size_t>(rows * cols)), absolute(expected.size());
  const Matrix e = AsMatrix(std::span(expected), rows, cols), a = AsMatrix(std::span(absolute), rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      e.row(i)[j] = before.at(i, j);
      a.row(i)[j] = std::abs(before.at(i, j));
    }
  }
  const Values absolute_gradients = layer.y_gradients.Absolute(), absolute_w = layer.w.Absolute();
  ProductBackwardInputCpu(layer.y_gradients.view(), layer.w.view(), write, e);
  ProductBackwardInputCpu(absolute_gradients.view(), absolute_w.view(), write, a);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const bool by_outputs = mode == InputMode::kThroughOutputs || mode == InputMode::kThroughAlone;
      const bool passes = by_outputs ? layer.x.at(i, j) > 0 : MaskBit(mask, cols, i, j);
      if (passes || add || mode == InputMode::kPlain) continue;
      e.row(i)[j] = 0;
      a.row(i)[j] = 0;  // Exactly.
    }
  }
  // The product may be rounded before it is added.
  ExpectNear(result.x_gradients, e, a, ToleranceOf(layer.x.precision, false), [&](int64_t i, int64_t j) {
    return std::abs(e.row(i)[j]) + (add ? std::abs(e.row(i)[j] - before.at(i, j)) : 0);
  });
  const auto [sums, absolute_sums] = SumsOfColumns(result.x_gradients);
  const bool wanted = IsThrough(mode) && mode != InputMode::kThroughAlone;
  for (size_t j = 0; j < sums.size(); ++j) {
    if (wanted) {
      ASSERT_NEAR(result.b_gradients[j], sums[j], 1e-6 * absolute_sums[j]) << j;
    } else {
      ASSERT_EQ(result.b_gradients[j], kUntouched) << j;
    }
  }
}

struct WeightsResult {
  std::vector<float> w, b;
  bool operator==(const WeightsResult&) const = default;
};

inline WeightsResult BackwardWeights(ProductsGpu* products, const Layer& layer, bool bias, const Stream& stream) {
  const OnDevice gradients = layer.y_gradients.ToDevice(stream), x = layer.x.ToDevice(stream);
  DeviceBuffer<float> w = Upload(std::vector<float>(layer.w.rows * layer.w.cols, kNan), stream);
  DeviceBuffer<float> b = Upload(std::vector<float>(layer.w.rows, kUntouched), stream);
  products->BackwardWeights(gradients.matrix, x.matrix, w.data(), bias ? b.data() : nullptr, stream);
  return {Download(w, stream), Download(b, stream)};
}

inline void ExpectBackwardWeights(const Layer& layer, bool bias, const WeightsResult& result) {
  const int64_t out = layer.w.rows, in = layer.w.cols;
  std::vector<float> expected(static_cast<size_t>(out * in)), absolute(expected.size());
  const Matrix e = AsMatrix(std::span(expected), out, in), a = AsMatrix(std::span(absolute), out, in);
  const Values absolute_gradients = layer.y_gradients.Absolute(), absolute_x = layer.x.Absolute();
  ProductBackwardWeightsCpu(layer.y_gradients.view(), layer.x.view(), e);
  ProductBackwardWeightsCpu(absolute_gradients.view(), absolute_x.view(), a);
  Values w(Precision::kFloat32, out, in, in, 0);
  w.elements = result.w;
  ExpectNear(w, e, a, ToleranceOf(layer.x.precision, true),
             [&](int64_t i, int64_t j) { return std::abs(e.row(i)[j]); });
  // The sums take no product, so tf32 could only cut them once.
  const auto [sums, absolute_sums] = SumsOfColumns(layer.y_gradients);
  const double tolerance = ToleranceOf(layer.x.precision, true).terms;
  for (size_t j = 0; j < result.b.size(); ++j) {
    if (!bias) {
      ASSERT_EQ(result.b[j], kUntouched) << j;
    } else {
      ASSERT_NEAR(result.b[j], sums[j], tolerance * absolute_sums[j]) << j;
    }
  }
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_DENSE_LINEAR_GPU_CASES_H_
