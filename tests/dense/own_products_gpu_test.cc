// Products of our own (dense/relu_product.cuh, tile_product.cuh, weight_product.cuh) against the CPU half, for every
// number of rows.

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/dense/linear_gpu_cases.h"
#include "tests/support/stated_costs.h"

namespace sparrow {
namespace {

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

class SmallProductsGpu : public OnGpu<::testing::TestWithParam<int64_t>> {};

TEST_P(SmallProductsGpu, EqualTheCpuHalfAndThemselves) {
  const Stream stream;
  const ProductsGpu::Options::Own always = ProductsGpu::Options::Own::kAlways;
  ProductsGpu products = MakeProducts({.precision = Precision::kBfloat16, .own = always}, stream);
  ProductsGpu ready = MakeProducts({.precision = Precision::kBfloat16, .own = always, .weights_ready = true}, stream);
  const int64_t n = GetParam();
  std::vector<std::pair<int64_t, int64_t>> sizes = {{8, 8}, {16, 512}, {256, 128}, {64, 200}, {200, 8}, {136, 264}};
  if (n < 5000) sizes.insert(sizes.end(), {{512, 256}, {1024, 512}, {480, 1024}, {1024, 1024}, {1416, 904}});
  for (const auto& [in, out] : sizes) {
    SCOPED_TRACE(::testing::Message() << "n " << n << ", in " << in << ", out " << out);
    const Layer layer(Precision::kBfloat16, {n, in, out}, 17 * n + in + out);
    const auto [before, mask] = BeforeBackwardInput(layer, n);
    for (const Flags& flags : kFlags) {
      if (flags.mask) continue;
      const ForwardResult y = Forward(&products, layer, flags, stream);
      ExpectForward(layer, flags, y);
      EXPECT_TRUE(Forward(&ready, layer, flags, stream) == y);
    }
    for (const InputMode mode : {InputMode::kPlain, InputMode::kThroughAlone}) {
      const InputResult x_gradients = BackwardInput(&products, layer, mode, mask, before, stream);
      ExpectBackwardInput(layer, mode, mask, before, x_gradients);
      EXPECT_TRUE(BackwardInput(&ready, layer, mode, mask, before, stream) == x_gradients);
    }
    if (HasFatalFailure()) return;
  }
  EXPECT_NE(products.Describe().find("own, small"), std::string::npos);
}

// The gradients of weights of several layers in one launch.
class WeightProductsGpu : public OnGpu<::testing::TestWithParam<int64_t>> {
 protected:
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;  // Inputs, outputs.

  // Of layers with and without biases.
  static std::vector<WeightsResult> Together(ProductsGpu* products, const std::vector<Layer>& layers, LaunchAt at,
                                             const Stream& stream) {
    std::vector<OnDevice> operands;
    std::vector<DeviceBuffer<float>> results;
    std::vector<LayerGradients> arguments;
    for (size_t i = 0; i < layers.size(); ++i) {
      const int64_t in = layers[i].x.cols, out = layers[i].y_gradients.cols;
      operands.push_back(layers[i].y_gradients.ToDevice(stream));
      operands.push_back(layers[i].x.ToDevice(stream));
      results.push_back(Upload(std::vector<float>(out * in, kNan), stream));
      results.push_back(Upload(std::vector<float>(out, kUntouched), stream));
      arguments.push_back({operands[2 * i].matrix, operands[2 * i + 1].matrix, results[2 * i].data(),
                           i % 3 == 2 ? nullptr : results[2 * i + 1].data()});
    }
    products->BackwardWeightsTogether(arguments, at, stream);
    std::vector<WeightsResult> all;
    for (size_t i = 0; i < layers.size(); ++i) {
      all.push_back({Download(results[2 * i], stream), Download(results[2 * i + 1], stream)});
    }
    return all;
  }

  void ExpectAll(const Sizes& sizes) {
    SCOPED_TRACE(::testing::Message() << sizes.size() << " layers, n " << GetParam());
    const Stream stream;
    ProductsGpu products = MakeProducts({.precision = Precision::kBfloat16}, stream);
    std::vector<Layer> layers;
    for (const auto& [in, out] : sizes) {
      layers.emplace_back(Precision::kBfloat16, Shape{GetParam(), in, out}, 13 * GetParam() + in + out + layers.size());
    }
    const std::vector<WeightsResult> results = Together(&products, layers, LaunchAt::kEnd, stream);
    for (size_t i = 0; i < layers.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "in " << sizes[i].first << ", out " << sizes[i].second);
      ExpectBackwardWeights(layers[i], i % 3 != 2, results[i]);
      if (HasFatalFailure()) return;
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Together(&products, layers, LaunchAt::kEarly, stream), results) << i;
    if (products.CanWeightsTogether()) {
      EXPECT_EQ(products.Describe(), "");  // The library was not asked.
    }
  }
};

TEST_P(WeightProductsGpu, OfOneTileEqualTheCpuHalfAndThemselves) {
  ExpectAll({{8, 8}});
  ExpectAll({{128, 128}});
}

TEST_P(WeightProductsGpu, OfFewTilesEqualTheCpuHalfAndThemselves) {
  ExpectAll({{16, 512}, {512, 256}, {256, 128}});
  ExpectAll({{136, 8}, {8, 136}, {264, 200}, {120, 128}});
}

TEST_P(WeightProductsGpu, OfManyLayersEqualTheCpuHalfAndThemselves) {
  ExpectAll({{8, 8}, {16, 24}, {32, 40}, {48, 56}, {64, 72}, {80, 88}, {96, 104}, {112, 120}, {128, 136}, {144, 152}});
}

TEST_P(WeightProductsGpu, OfMoreTilesThanHalfOfTheGpuEqualTheCpuHalfAndThemselves) {
  if (GetParam() > 5000) return ExpectAll({{1160, 904}});
  ExpectAll({{480, 1024}, {1160, 904}, {8, 1416}});
}

INSTANTIATE_TEST_SUITE_P(All, WeightProductsGpu, ::testing::Values(0, 1, 31, 32, 33, 127, 257, 1000, 2048, 8209));

using OwnProductsGpu = OnGpu<>;

TEST_F(OwnProductsGpu, EveryKernelStatesItsCost) {
  const Stream stream;
  ProductsGpu products =
      MakeProducts({.precision = Precision::kBfloat16, .own = ProductsGpu::Options::Own::kAlways}, stream);
  const Layer layer(Precision::kBfloat16, {257, 480, 512}, 77);
  const auto [before, mask] = BeforeBackwardInput(layer, 6);
  const auto all = [&, &before = before, &mask = mask] {
    Forward(&products, layer, kFlags[1], stream);
    for (const InputMode mode : {InputMode::kPlain, InputMode::kThroughOutputs, InputMode::kThroughAlone}) {
      BackwardInput(&products, layer, mode, mask, before, stream);
    }
    const OnDevice gradients = layer.y_gradients.ToDevice(stream), x = layer.x.ToDevice(stream);
    DeviceBuffer<float> w = Upload(std::vector<float>(512 * 480), stream), b = Upload(std::vector<float>(512), stream);
    const LayerGradients weights{gradients.matrix, x.matrix, w.data(), b.data()};
    products.BackwardWeightsTogether(std::span(&weights, 1), LaunchAt::kEnd, stream);
    stream.Synchronize();
  };
  all();  // Products choose.
  ExpectStatedCosts(all);
}

INSTANTIATE_TEST_SUITE_P(All, SmallProductsGpu, ::testing::Values(1, 31, 64, 127, 129, 257, 1000, 2048, 70001));

}  // namespace
}  // namespace sparrow
