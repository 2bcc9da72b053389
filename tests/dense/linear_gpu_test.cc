// The twins of dense/linear.h and of the bias and ReLU of dense/activation.h: the CUDA half against the CPU half.

#include "dense/linear_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/cuda/graph.h"
#include "base/random.h"
#include "dense/linear.h"
#include "tests/dense/device_values.h"
#include "tests/support/stated_costs.h"

namespace sparrow {
namespace {

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
Tolerance ToleranceOf(Precision precision, bool float_output) {
  const double terms = precision == Precision::kTf32 ? 2e-3 : 2e-6;
  if (float_output || ElementBytes(precision) == 4) return {0x1p-23, terms};
  return {precision == Precision::kBfloat16 ? 0x1.01p-8 : 0x1.01p-11, terms};
}

bool MaskBit(const std::vector<uint8_t>& mask, int64_t cols, int64_t i, int64_t j) {
  const int64_t pitch = static_cast<int64_t>(ReluMaskBytes(1, cols));
  return (mask[static_cast<size_t>(i * pitch + j / 8)] >> (j % 8) & 1) != 0;
}

// `actual` near `expected`, whose terms' absolute values sum up to `absolute`; gaps untouched. rounded(i, j): the sum
// of the absolute values of everything that was rounded on the way.
void ExpectNear(const Values& actual, const Matrix& expected, const Matrix& absolute, Tolerance tolerance,
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

// Each pair of sizes in turn, for each number of rows; wide layers; many rows with narrow layers.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  const std::pair<int64_t, int64_t> sizes[] = {{8, 8},    {16, 512},   {64, 16},  {480, 1024},
                                               {512, 64}, {1024, 480}, {8, 1024}, {1024, 8}};
  for (const int64_t n : {0, 1, 31, 32, 33, 257}) {
    for (const auto& [in, out] : sizes) shapes.push_back({n, in, out});
  }
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{4096, 8}, {8, 4096}, {4096, 520}, {520, 4096}}) {
    for (const int64_t n : {1, 31, 32, 33, 257}) shapes.push_back({n, in, out});
  }
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{8, 8}, {16, 64}, {64, 16}}) {
    shapes.push_back({70001, in, out});
  }
  return shapes;
}

const std::vector<Shape> kSomeShapes = {{1, 8, 8}, {33, 512, 64}, {257, 480, 1024}, {70001, 16, 64}, {70001, 64, 128}};

ProductsGpu MakeProducts(const ProductsGpu::Options& options, const Stream& stream) {
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

ForwardResult Forward(ProductsGpu* products, const Layer& layer, const Flags& flags, const Stream& stream) {
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

void ExpectForward(const Layer& layer, const Flags& flags, const ForwardResult& result) {
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

// BackwardInput, BackwardThroughRelu with a mask, and without.
enum class InputMode { kPlain, kMask, kAdd, kThroughMask, kThroughOutputs, kCount };

struct InputResult {
  Values x_gradients;
  std::vector<float> b_gradients;
  bool operator==(const InputResult& other) const {
    return x_gradients.elements == other.x_gradients.elements && b_gradients == other.b_gradients;
  }
};

InputResult BackwardInput(ProductsGpu* products, const Layer& layer, InputMode mode, const std::vector<uint8_t>& mask,
                          const Values& before, const Stream& stream) {
  const OnDevice gradients = layer.y_gradients.ToDevice(stream), w = layer.w.ToDevice(stream);
  const OnDevice x = layer.x.ToDevice(stream), x_gradients = before.ToDevice(stream);
  const DeviceBuffer<uint8_t> device_mask = Upload(mask, stream);
  InputResult result{before, std::vector<float>(layer.x.cols, kUntouched)};
  DeviceBuffer<float> sums = Upload(result.b_gradients, stream);
  if (mode == InputMode::kThroughMask || mode == InputMode::kThroughOutputs) {
    products->BackwardThroughRelu(gradients.matrix, w.matrix, x.matrix,
                                  mode == InputMode::kThroughMask ? device_mask.data() : nullptr, x_gradients.matrix,
                                  sums.data(), stream);
  } else {
    products->BackwardInput(gradients.matrix, w.matrix, mode == InputMode::kMask ? device_mask.data() : nullptr,
                            mode == InputMode::kAdd, x_gradients.matrix, stream);
  }
  result.x_gradients.FromDevice(x_gradients, stream);
  result.b_gradients = Download(sums, stream);
  return result;
}

// What is added to, and the mask, random; the gaps untouched.
std::pair<Values, std::vector<uint8_t>> BeforeBackwardInput(const Layer& layer, uint64_t seed) {
  Values before = Values::Random(layer.x.precision, layer.x.rows, layer.x.cols, layer.x.cols + 40, seed);
  for (float& value : before.elements) value = std::isnan(value) ? kUntouched : value;
  std::vector<uint8_t> mask(ReluMaskBytes(layer.x.rows, layer.x.cols));
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<uint8_t>(RandomBits(seed, i));
  return {before, mask};
}

// Sums of columns of `values` and of their absolute values, in double.
std::pair<std::vector<double>, std::vector<double>> SumsOfColumns(const Values& values) {
  std::vector<double> sums(static_cast<size_t>(values.cols)), absolute(sums.size());
  for (int64_t i = 0; i < values.rows; ++i) {
    for (int64_t j = 0; j < values.cols; ++j) {
      sums[static_cast<size_t>(j)] += values.at(i, j);
      absolute[static_cast<size_t>(j)] += std::abs(values.at(i, j));
    }
  }
  return {sums, absolute};
}

void ExpectBackwardInput(const Layer& layer, InputMode mode, const std::vector<uint8_t>& mask, const Values& before,
                         const InputResult& result) {
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
      const bool passes = mode == InputMode::kThroughOutputs ? layer.x.at(i, j) > 0 : MaskBit(mask, cols, i, j);
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
  const bool wanted = mode == InputMode::kThroughMask || mode == InputMode::kThroughOutputs;
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

WeightsResult BackwardWeights(ProductsGpu* products, const Layer& layer, bool bias, const Stream& stream) {
  const OnDevice gradients = layer.y_gradients.ToDevice(stream), x = layer.x.ToDevice(stream);
  DeviceBuffer<float> w = Upload(std::vector<float>(layer.w.rows * layer.w.cols, kNan), stream);
  DeviceBuffer<float> b = Upload(std::vector<float>(layer.w.rows, kUntouched), stream);
  products->BackwardWeights(gradients.matrix, x.matrix, w.data(), bias ? b.data() : nullptr, stream);
  return {Download(w, stream), Download(b, stream)};
}

void ExpectBackwardWeights(const Layer& layer, bool bias, const WeightsResult& result) {
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

std::string PrecisionName(Precision precision) {
  return std::vector<std::string>{"Fp32", "Tf32", "Bf16", "Fp16"}[static_cast<size_t>(precision)];
}

// Precision; epilogues or own kernels.
class LinearGpu : public OnGpu<::testing::TestWithParam<std::tuple<Precision, bool>>> {
 protected:
  ProductsGpu::Options Options(bool deterministic) const {
    return {.precision = std::get<0>(GetParam()),
            .deterministic = deterministic,
            .fuse = std::get<1>(GetParam()),
            .library = library_};
  }
  Precision precision() const { return std::get<0>(GetParam()); }

  // All three operations on these shapes, against the CPU half and, where deterministic, against a second object.
  void ExpectAll(const std::vector<Shape>& shapes, bool deterministic) {
    const Stream stream;
    ProductsGpu products = MakeProducts(Options(deterministic), stream);
    ProductsGpu others = MakeProducts(Options(deterministic), stream);
    for (size_t s = 0; s < shapes.size(); ++s) {
      const Shape& shape = shapes[s];
      SCOPED_TRACE(::testing::Message() << "n " << shape.n << ", in " << shape.in << ", out " << shape.out);
      const Layer layer(precision(), shape, 100 * s + 1);
      // Shapes with their index's flags, so that each size meets each: 8 sizes, 5 sets of flags and 5 modes, 2 for the
      // bias.
      const Flags& flags = kFlags[(s + s / 8) % std::size(kFlags)];
      const ForwardResult y = Forward(&products, layer, flags, stream);
      ExpectForward(layer, flags, y);
      const InputMode mode = static_cast<InputMode>((s + s / 8) % static_cast<size_t>(InputMode::kCount));
      const auto [before, mask] = BeforeBackwardInput(layer, 7 * s);
      const InputResult x_gradients = BackwardInput(&products, layer, mode, mask, before, stream);
      ExpectBackwardInput(layer, mode, mask, before, x_gradients);
      const bool bias = (s + s / 8) % 2 == 0;
      const WeightsResult weights = BackwardWeights(&products, layer, bias, stream);
      ExpectBackwardWeights(layer, bias, weights);
      if (HasFatalFailure()) {
        ADD_FAILURE() << products.Describe();
        return;
      }
      if (!deterministic) continue;
      EXPECT_TRUE(Forward(&others, layer, flags, stream) == y) << "two runs must agree bit for bit";
      EXPECT_TRUE(BackwardInput(&others, layer, mode, mask, before, stream) == x_gradients);
      EXPECT_EQ(BackwardWeights(&others, layer, bias, stream), weights);
    }
  }

  bool library_ = true;
};

TEST_P(LinearGpu, DeterministicProductsEqualTheCpuHalfAndThemselves) { ExpectAll(Shapes(), true); }

TEST_P(LinearGpu, TimedProductsEqualTheCpuHalf) { ExpectAll(kSomeShapes, false); }

TEST_P(LinearGpu, ProductsThatTheLibraryDoesNotHaveEqualTheCpuHalf) {
  library_ = false;
  ExpectAll(kSomeShapes, true);
}

TEST_P(LinearGpu, AReplayedGraphEqualsTheCallsBitForBit) {
  const Stream stream;
  ProductsGpu products = MakeProducts(Options(false), stream);
  const Layer layer(precision(), {257, 64, 512}, 5);
  const OnDevice x = layer.x.ToDevice(stream), w = layer.w.ToDevice(stream), b = layer.b.ToDevice(stream);
  const OnDevice y_gradients = layer.y_gradients.ToDevice(stream);
  const auto [before, mask_below] = BeforeBackwardInput(layer, 6);
  const OnDevice x_gradients = before.ToDevice(stream);
  const DeviceBuffer<uint8_t> below = Upload(mask_below, stream);
  const OnDevice y = Values(precision(), 257, 512, 512, 0).ToDevice(stream);
  DeviceBuffer<uint8_t> mask = Upload(std::vector<uint8_t>(ReluMaskBytes(257, 512)), stream);
  DeviceBuffer<float> w_gradients = Upload(std::vector<float>(512 * 64), stream);
  DeviceBuffer<float> b_gradients = Upload(std::vector<float>(512), stream);
  DeviceBuffer<float> sums = Upload(std::vector<float>(64), stream);
  const auto work = [&] {
    products.Forward(x.matrix, w.matrix, b.matrix.data, true, y.matrix, mask.data(), stream);
    products.BackwardThroughRelu(y_gradients.matrix, w.matrix, x.matrix, below.data(), x_gradients.matrix, sums.data(),
                                 stream);
    products.BackwardInput(y_gradients.matrix, w.matrix, nullptr, true, x_gradients.matrix, stream);
    products.BackwardWeights(y_gradients.matrix, x.matrix, w_gradients.data(), b_gradients.data(), stream);
  };
  const auto results = [&] {
    return std::tuple(Download(y.memory, stream), Download(mask, stream), Download(x_gradients.memory, stream),
                      Download(w_gradients, stream), Download(b_gradients, stream), Download(sums, stream));
  };
  work();  // Chooses.
  work();
  const auto eager = results();
  const Graph graph(stream, work);
  for (int i = 0; i < 2; ++i) {
    internal::FillDevice(y.matrix.data, 0xff, y.memory.size(), stream);
    mask.Fill(0xff, stream);
    internal::FillDevice(x_gradients.matrix.data, 0xff, x_gradients.memory.size(), stream);
    w_gradients.Fill(0xff, stream);
    b_gradients.Fill(0xff, stream);
    sums.Fill(0xff, stream);
    graph.Replay(stream);
    auto replayed = results();
    // The gaps behind the rows of x_gradients hold what they were filled with.
    std::vector<char>& gaps = std::get<2>(replayed);
    const size_t size = ElementBytes(precision());
    for (size_t at = 0; at < gaps.size(); ++at) {
      if (at / size % 104 >= 64) gaps[at] = std::get<2>(eager)[at];
    }
    EXPECT_TRUE(replayed == eager) << i;
  }
}

// Gradients of weights beside the chain of the layers, each stream with an object of its own.
TEST_P(LinearGpu, TwoStreamsInAGraphGiveWhatOneGives) {
  const Stream main, side;
  ProductsGpu products = MakeProducts(Options(true), main), beside = MakeProducts(Options(true), side);
  const Layer layer(precision(), {513, 64, 512}, 15);
  const OnDevice x = layer.x.ToDevice(main), w = layer.w.ToDevice(main);
  const OnDevice y_gradients = layer.y_gradients.ToDevice(main);
  const OnDevice x_gradients = Values(precision(), 513, 64, 64, 0).ToDevice(main);
  DeviceBuffer<float> sums = Upload(std::vector<float>(64), main), b_gradients = Upload(std::vector<float>(512), main);
  DeviceBuffer<float> w_gradients = Upload(std::vector<float>(512 * 64), main);
  Event fork, join;
  const auto work = [&](ProductsGpu* of_weights, const Stream& stream) {
    products.BackwardThroughRelu(y_gradients.matrix, w.matrix, x.matrix, nullptr, x_gradients.matrix, sums.data(),
                                 main);
    fork.Record(main);
    stream.WaitFor(fork);
    of_weights->BackwardWeights(y_gradients.matrix, x.matrix, w_gradients.data(), b_gradients.data(), stream);
    products.BackwardThroughRelu(y_gradients.matrix, w.matrix, x.matrix, nullptr, x_gradients.matrix, sums.data(),
                                 main);
    join.Record(stream);
    main.WaitFor(join);
  };
  const auto results = [&] {
    return std::tuple(Download(x_gradients.memory, main), Download(sums, main), Download(w_gradients, main),
                      Download(b_gradients, main));
  };
  work(&products, main);
  const auto one = results();
  work(&beside, side);  // Chooses.
  const Graph graph(main, [&] { work(&beside, side); });
  for (int i = 0; i < 3; ++i) {
    w_gradients.Fill(0xff, main);
    b_gradients.Fill(0xff, main);
    sums.Fill(0xff, main);
    graph.Replay(main);
    EXPECT_TRUE(results() == one) << i;
  }
}

// A model that has diverged must be seen. At exactly 0 a mask has a bit, and outputs let nothing pass.
TEST_P(LinearGpu, NanPassesReluAndTheDerivativeAtZeroIsAsPromised) {
  const Stream stream;
  for (const bool deterministic : {true, false}) {
    ProductsGpu products = MakeProducts(Options(deterministic), stream);
    for (const Flags& flags : {kFlags[0], kFlags[1], kFlags[3]}) {
      Layer layer(precision(), {129, 64, 264}, 9);
      for (int64_t j = 0; j < 64; ++j) layer.x.at(3, j) = layer.x.at(4, j) = 0;
      layer.x.at(4, 5) = kNan;
      std::fill(layer.b.elements.begin(), layer.b.elements.end(), 0.0f);
      const ForwardResult result = Forward(&products, layer, flags, stream);
      int nan = 0, zero = 0, bits = 0;
      for (int64_t j = 0; j < 264; ++j) {
        zero += result.y.at(3, j) == 0 ? 1 : 0;
        nan += std::isnan(result.y.at(4, j)) ? 1 : 0;
        bits += MaskBit(result.mask, 264, 3, j) ? 1 : 0;
      }
      EXPECT_EQ(zero, 264);
      EXPECT_EQ(nan, 264) << products.Describe();
      if (!flags.mask) continue;
      EXPECT_EQ(bits, 264) << products.Describe();
    }
  }
}

class ReluProductGpu : public OnGpu<::testing::TestWithParam<int64_t>> {};

TEST_P(ReluProductGpu, EqualsTheCpuHalfAndItself) {
  const Stream stream;
  ProductsGpu products =
      MakeProducts({.precision = Precision::kBfloat16, .own = ProductsGpu::Options::Own::kAlways}, stream);
  const int64_t n = GetParam();
  std::vector<std::pair<int64_t, int64_t>> sizes = {{8, 8}, {128, 64}, {256, 128}, {64, 200}, {200, 8}, {136, 264}};
  if (n < 5000) sizes.insert(sizes.end(), {{512, 256}, {1024, 512}, {480, 1024}, {1024, 1024}});
  for (const auto& [in, out] : sizes) {
    SCOPED_TRACE(::testing::Message() << "n " << n << ", in " << in << ", out " << out);
    const Layer layer(Precision::kBfloat16, {n, in, out}, 31 * n + in + out);
    const auto [before, mask] = BeforeBackwardInput(layer, n);
    const InputResult result = BackwardInput(&products, layer, InputMode::kThroughOutputs, mask, before, stream);
    ExpectBackwardInput(layer, InputMode::kThroughOutputs, mask, before, result);
    if (HasFatalFailure()) return;
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(BackwardInput(&products, layer, InputMode::kThroughOutputs, mask, before, stream) == result) << i;
    }
  }
  EXPECT_NE(products.Describe().find("own"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, ReluProductGpu, ::testing::Values(1, 31, 64, 127, 128, 129, 257, 1000, 4097, 70001));

INSTANTIATE_TEST_SUITE_P(All, LinearGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kTf32,
                                                              Precision::kBfloat16, Precision::kFloat16),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return PrecisionName(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "Fused" : "Apart");
                         });

class ColumnSumsGpu : public OnGpu<::testing::TestWithParam<Precision>> {};

TEST_P(ColumnSumsGpu, EqualTheSumsInDoubleAndThemselves) {
  const Stream stream;
  ProductsGpu products = MakeProducts({.precision = GetParam()}, stream);
  std::vector<std::pair<int64_t, int64_t>> shapes = {{3, 300'000}};  // More columns than one launch takes in 16 bits.
  for (const int64_t rows : {0, 1, 31, 32, 33, 257, 4097, 70001}) {
    for (const int64_t cols : {8, 16, 64, 72, 520}) shapes.emplace_back(rows, cols);
  }
  for (const auto& [rows, cols] : shapes) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
    const Values values = Values::Random(GetParam(), rows, cols, cols + 8, 3);
    const OnDevice device = values.ToDevice(stream);
    DeviceBuffer<float> sums = Upload(std::vector<float>(static_cast<size_t>(cols), kNan), stream);
    products.ColumnSums(device.matrix, sums.data(), stream);
    const std::vector<float> first = Download(sums, stream);
    const auto [expected, absolute] = SumsOfColumns(values);
    for (size_t j = 0; j < first.size(); ++j) ASSERT_NEAR(first[j], expected[j], 1e-6 * absolute[j]) << j;
    sums.Fill(0xff, stream);
    products.ColumnSums(device.matrix, sums.data(), stream);
    EXPECT_EQ(Download(sums, stream), first) << "two runs must agree bit for bit";
  }
}

INSTANTIATE_TEST_SUITE_P(All, ColumnSumsGpu,
                         ::testing::Values(Precision::kFloat32, Precision::kBfloat16, Precision::kFloat16),
                         [](const auto& info) { return PrecisionName(info.param); });

TEST_P(LinearGpu, EveryKernelStatesItsCost) {
  const Stream stream;
  const Layer layer{precision(), {257, 480, 512}, 77};
  ProductsGpu products = MakeProducts(Options(true), stream);
  const auto all = [&] {
    for (const Flags& flags : kFlags) Forward(&products, layer, flags, stream);
    BackwardWeights(&products, layer, true, stream);
  };
  all();  // Products choose.
  ExpectStatedCosts(all);
}

class ProductsGpuPlans : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu<>::SetUp();
    std::filesystem::remove(path_);
  }
  std::string Text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // The operations of a layer by an object that lives as long as this call: what it described, and the results.
  struct Run {
    std::string description;
    std::string warnings;
    std::vector<float> y;
    WeightsResult weights;
  };
  Run RunOnce() {
    const Stream stream;
    Run run;
    ::testing::internal::CaptureStderr();
    {
      ProductsGpu products = MakeProducts({.precision = Precision::kBfloat16, .plan_file = path_}, stream);
      run.y = Forward(&products, layer_, kFlags[0], stream).y.elements;
      run.weights = BackwardWeights(&products, layer_, true, stream);
      run.description = products.Describe();
    }
    run.warnings = ::testing::internal::GetCapturedStderr();
    ExpectBackwardWeights(layer_, true, run.weights);
    return run;
  }

  const std::string path_ = ::testing::TempDir() + "/linear_gpu_test.plans";
  const Layer layer_{Precision::kBfloat16, {257, 480, 512}, 77};
};

TEST_F(ProductsGpuPlans, ChoicesComeBackFromTheFileAndAForeignFileIsWrittenAnew) {
  const Run first = RunOnce();
  EXPECT_EQ(first.warnings, "");
  EXPECT_EQ(first.description.find("plan file"), std::string::npos) << first.description;
  const std::string written = Text();
  EXPECT_NE(written.find("H200"), std::string::npos) << written;
  const Run second = RunOnce();
  EXPECT_EQ(second.warnings, "");
  EXPECT_NE(second.description.find("plan file"), std::string::npos) << second.description;
  EXPECT_EQ(Text(), written);
  EXPECT_EQ(second.y, first.y) << "the same choices give the same bits";
  EXPECT_EQ(second.weights, first.weights);

  std::ofstream(path_, std::ios::binary) << "sparrow-product-plans 1\nanother GPU\nchecksum 0\n";
  const Run third = RunOnce();
  EXPECT_NE(third.warnings.find(path_), std::string::npos) << third.warnings;
  EXPECT_EQ(third.description.find("plan file"), std::string::npos) << third.description;
  EXPECT_NE(RunOnce().description.find("plan file"), std::string::npos);
}

using ProductsGpuDeathTest = ProductsGpuPlans;

TEST_F(ProductsGpuDeathTest, AFirstCallInsideACaptureDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto capture = [this] {
    const Stream stream;
    ProductsGpu products = MakeProducts({.deterministic = true}, stream);
    const OnDevice x = layer_.x.ToDevice(stream), w = layer_.w.ToDevice(stream);
    const OnDevice y = Values(Precision::kBfloat16, 257, 512, 512, 0).ToDevice(stream);
    const Graph graph(stream, [&] { products.Forward(x.matrix, w.matrix, nullptr, false, y.matrix, nullptr, stream); });
  };
  EXPECT_DEATH(capture(), "must not be inside a capture");
}

}  // namespace
}  // namespace sparrow
