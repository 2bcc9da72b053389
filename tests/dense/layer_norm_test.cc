#include "dense/layer_norm.h"

#include <gtest/gtest.h>

#include "tests/dense/gpt2_reference.h"

namespace sparrow {
namespace {

using testing::Derivative;
using testing::Near;
using testing::RandomFloats;
using testing::ToDouble;
using testing::Vector;

class LayerNormTest : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(LayerNormTest, EqualsDoubleReferenceAndItsDerivatives) {
  const auto [n, width] = GetParam();
  std::vector<float> x = RandomFloats(1, n * width);
  for (float& v : x) v += 3;  // A mean that is to be taken off.
  const std::vector<float> weight = RandomFloats(2, width), bias = RandomFloats(3, width);
  const std::vector<float> c = RandomFloats(4, n * width);
  std::vector<RowMoments> moments(n);
  std::vector<float> y(n * width, 9.0f);
  const auto rows = [&](auto& values) { return AsMatrix(std::span(values), n, width); };
  LayerNormForwardCpu(rows(x), weight, bias, moments, rows(y));
  const std::vector<float> before = RandomFloats(5, n * width);
  std::vector<float> dx(n * width, 9.0f), dx_added = before, dw(width, 1.0f), db(width, 2.0f);
  std::vector<float> unused_w(width), unused_b(width);
  LayerNormBackwardCpu(rows(c), rows(x), weight, moments, Write::kOverwrite, rows(dx), dw, db);
  LayerNormBackwardCpu(rows(c), rows(x), weight, moments, Write::kAdd, rows(dx_added), unused_w, unused_b);

  Vector xs = ToDouble(x), ws = ToDouble(weight), bs = ToDouble(bias);
  const auto reference = [&](int64_t i) {
    return testing::LayerNorm(Vector(xs.begin() + i * width, xs.begin() + (i + 1) * width), ws, bs);
  };
  const auto objective = [&] {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Vector out = reference(i);
      for (int64_t j = 0; j < width; ++j) sum += c[i * width + j] * out[j];
    }
    return sum;
  };
  for (int64_t i = 0; i < n; ++i) {
    const Vector expected = reference(i);
    for (int64_t j = 0; j < width; ++j) ASSERT_TRUE(Near(y[i * width + j], expected[j], 1e-5)) << i << " " << j;
  }
  for (int64_t i = 0; i < n * width; i += std::max<int64_t>(1, n * width / 40)) {
    ASSERT_TRUE(Near(dx[i], Derivative(objective, &xs[i]), 1e-4)) << i;
    ASSERT_NEAR(dx_added[i], before[i] + dx[i], 1e-6) << i;
  }
  for (int64_t j = 0; j < width; j += std::max<int64_t>(1, width / 10)) {
    ASSERT_TRUE(Near(dw[j] - 1, Derivative(objective, &ws[j]), 1e-4)) << j;
    ASSERT_TRUE(Near(db[j] - 2, Derivative(objective, &bs[j]), 1e-4)) << j;
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayerNormTest,
                         ::testing::Values(std::pair{0, 5}, std::pair{1, 1}, std::pair{3, 7}, std::pair{65, 33},
                                           std::pair{130, 64}));

// A row without variance is divided by sqrt(eps), not by 0.
TEST(LayerNorm, AConstantRowIsItsBias) {
  const std::vector<float> x(4, 5.0f), weight(4, 2.0f), bias = {1, 2, 3, 4};
  std::vector<RowMoments> moments(1);
  std::vector<float> y(4);
  LayerNormForwardCpu(AsMatrix(std::span(x), 1, 4), weight, bias, moments, AsMatrix(std::span(y), 1, 4));
  EXPECT_EQ(y, bias);
}

}  // namespace
}  // namespace sparrow
