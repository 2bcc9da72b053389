// The twins of dense/linear.h and of the bias and ReLU of dense/activation.h: the CUDA half against the CPU half.

#include "dense/linear_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "base/cuda/graph.h"
#include "dense/gelu.h"
#include "tests/dense/linear_gpu_cases.h"
#include "tests/support/stated_costs.h"

namespace sparrow {
namespace {

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
      // Shapes with their index's flags, so that each size meets each: 8 sizes, 5 sets of flags and 6 modes, 2 for the
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

// Forward and backward, chosen by time and untimed. Both halves may round before the GELU or its derivative, whose
// slopes are at most 1.13; hardware's tanh has an error of 2^-11.
TEST_P(LinearGpu, GeluAndItsDerivativeAreTheCpus) {
  const Stream stream;
  for (const bool deterministic : {true, false}) {
    ProductsGpu products = MakeProducts(Options(deterministic), stream);
    for (const Shape& shape : {Shape{33, 64, 48}, Shape{257, 480, 512}}) {
      const Layer layer(precision(), shape, 991);
      const Tolerance tolerance = ToleranceOf(precision(), false);
      const double tanh_error = ElementBytes(precision()) == 4 ? 1e-6 : 0x1p-10;
      const OnDevice x = layer.x.ToDevice(stream), w = layer.w.ToDevice(stream), b = layer.b.ToDevice(stream);
      Values before(precision(), shape.n, shape.out, shape.out + 32, kUntouched), y = before;
      const OnDevice device_before = before.ToDevice(stream), device_y = y.ToDevice(stream);
      products.ForwardGelu(x.matrix, w.matrix, b.matrix.data, device_before.matrix, device_y.matrix, stream);
      before.FromDevice(device_before, stream);
      y.FromDevice(device_y, stream);
      ExpectForward(layer, {.bias = true, .relu = false, .mask = false}, {before, {}});
      for (int64_t i = 0; i < shape.n; ++i) {
        for (int64_t j = 0; j < shape.out; ++j) {
          const double input = before.at(i, j);
          const double near = 1.13 * 2 * tolerance.rounding * (2 * std::abs(input) + 1.05) +
                              (tolerance.terms * static_cast<double>(shape.in) + tanh_error) * (1 + std::abs(input));
          ASSERT_NEAR(y.at(i, j), GeluOf(before.at(i, j)), near) << "row " << i << ", column " << j;
        }
        ASSERT_EQ(y.at(i, shape.out), kUntouched);
      }

      // Through a GELU whose input is x.
      const OnDevice gradients = layer.y_gradients.ToDevice(stream);
      Values x_gradients(precision(), shape.n, shape.in, shape.in + 8, kUntouched);
      const OnDevice device_x_gradients = x_gradients.ToDevice(stream);
      products.BackwardThroughGelu(gradients.matrix, w.matrix, x.matrix, device_x_gradients.matrix, stream);
      x_gradients.FromDevice(device_x_gradients, stream);
      std::vector<float> product(static_cast<size_t>(shape.n * shape.in)), absolute(product.size());
      const Matrix p = AsMatrix(std::span(product), shape.n, shape.in);
      const Matrix a = AsMatrix(std::span(absolute), shape.n, shape.in);
      ProductBackwardInputCpu(layer.y_gradients.view(), layer.w.view(), Write::kOverwrite, p);
      ProductBackwardInputCpu(layer.y_gradients.Absolute().view(), layer.w.Absolute().view(), Write::kOverwrite, a);
      for (int64_t i = 0; i < shape.n; ++i) {
        for (int64_t j = 0; j < shape.in; ++j) {
          const double size = std::abs(p.row(i)[j]);
          const double near =
              1.13 * (3 * tolerance.rounding + tanh_error) * size + 1.13 * tolerance.terms * a.row(i)[j];
          ASSERT_NEAR(x_gradients.at(i, j), p.row(i)[j] * GeluDerivativeOf(layer.x.at(i, j)), near + tanh_error * size)
              << "row " << i << ", column " << j;
        }
      }
    }
  }
}

TEST_P(LinearGpu, GradientsOfWeightsAreAdded) {
  constexpr float kBefore = 0.5;
  const Stream stream;
  for (const bool deterministic : {true, false}) {
    ProductsGpu products = MakeProducts(Options(deterministic), stream);
    for (const Shape& shape : {Shape{31, 64, 48}, Shape{1000, 480, 128}}) {
      const Layer layer(precision(), shape, 555);
      const OnDevice gradients = layer.y_gradients.ToDevice(stream), x = layer.x.ToDevice(stream);
      for (const bool bias : {true, false}) {
        DeviceBuffer<float> w = Upload(std::vector<float>(shape.out * shape.in, kBefore), stream);
        DeviceBuffer<float> b = Upload(std::vector<float>(shape.out, bias ? kBefore : kUntouched), stream);
        products.AddBackwardWeights({.y_gradients = gradients.matrix,
                                     .x = x.matrix,
                                     .w_gradients = w.data(),
                                     .b_gradients = bias ? b.data() : nullptr},
                                    stream);
        WeightsResult result{Download(w, stream), Download(b, stream)};
        for (float& value : result.w) value -= kBefore;
        for (float& value : result.b) value -= bias ? kBefore : 0;
        ExpectBackwardWeights(layer, bias, result);
      }
    }
  }
}

TEST_P(LinearGpu, EveryKernelStatesItsCost) {
  const Stream stream;
  const Layer layer{precision(), {257, 480, 512}, 77};
  ProductsGpu products = MakeProducts(Options(true), stream);
  const auto all = [&] {
    for (const Flags& flags : kFlags) Forward(&products, layer, flags, stream);
    BackwardWeights(&products, layer, true, stream);
    const OnDevice x = layer.x.ToDevice(stream), w = layer.w.ToDevice(stream), b = layer.b.ToDevice(stream);
    const OnDevice gradients = layer.y_gradients.ToDevice(stream);
    const OnDevice y = layer.y_gradients.ToDevice(stream), before = layer.y_gradients.ToDevice(stream);
    const OnDevice x_gradients = layer.x.ToDevice(stream);
    products.ForwardGelu(x.matrix, w.matrix, b.matrix.data, before.matrix, y.matrix, stream);
    products.BackwardThroughGelu(gradients.matrix, w.matrix, x.matrix, x_gradients.matrix, stream);
    stream.Synchronize();
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

  std::ofstream(path_, std::ios::binary) << "sparrow-product-plans 2\nanother GPU\nchecksum 0\n";
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
