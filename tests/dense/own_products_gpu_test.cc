// Products of our own (dense/relu_product.cuh, dense/tile_product.cuh) against the CPU half, for every number of rows.

#include <gtest/gtest.h>

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
  };
  all();  // Products choose.
  ExpectStatedCosts(all);
}

INSTANTIATE_TEST_SUITE_P(All, SmallProductsGpu, ::testing::Values(1, 31, 64, 127, 129, 257, 1000, 2048, 70001));

}  // namespace
}  // namespace sparrow
