#include "dense/last_layer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/dense/double_reference.h"

namespace sparrow {
namespace {

using testing::Derivative;
using testing::Near;
using testing::RandomFloats;
using testing::ToDouble;
using testing::Vector;

constexpr uint64_t kSeed = 4711;
constexpr double kTolerance = 1e-5;  // Dots of at most 129 products of numbers below 1.1, and their exponentials.

// The loss over the first `samples` rows, in double precision.
double Reference(const Vector& h, const Vector& w, double b, const std::vector<float>& labels, int64_t samples) {
  double sum = 0;
  for (int64_t i = 0; i < samples; ++i) {
    double z = b;
    for (size_t j = 0; j < w.size(); ++j) z += h[i * w.size() + j] * w[j];
    sum += std::log1p(std::exp(z)) - z * labels[i];
  }
  return sum;
}

TEST(LastLayer, EqualsDoubleReferenceAndItsDifferences) {
  for (const auto& [n, in, samples] : {std::tuple<int64_t, int64_t, int64_t>{0, 8, 0},
                                       {1, 1, 1},
                                       {33, 7, 20},
                                       {32, 129, 32},
                                       {65, 16, 64},
                                       {31, 8, 0}}) {
    SCOPED_TRACE(::testing::Message() << n << " rows of " << in);
    std::vector<float> h = RandomFloats(kSeed, n * in);
    const std::vector<float> w = RandomFloats(kSeed + 1, in), b = {0.375f};
    std::vector<float> labels = RandomFloats(kSeed + 2, n);
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = i % 3 == 0 ? 0.25f : labels[i] > 0;
    std::vector<float> logits(n, 9.0f), h_gradients(n * in, 9.0f), w_gradients(in, 9.0f), b_gradients(1, 9.0f);
    const float scale = 4;
    const double loss =
        LastLayerLossCpu(AsMatrix(std::span<const float>(h), n, in), {w.data(), b.data(), false}, labels, samples,
                         scale, logits, {AsMatrix(std::span(h_gradients), n, in), w_gradients, b_gradients.data()});
    Vector h_reference = ToDouble(h), w_reference = ToDouble(w);
    double b_reference = b[0];
    const auto objective = [&] { return Reference(h_reference, w_reference, b_reference, labels, samples); };
    EXPECT_TRUE(Near(loss, objective(), kTolerance)) << loss;
    for (int64_t i = 0; i < n; ++i) {
      double z = b[0];
      for (int64_t j = 0; j < in; ++j) z += double{h[i * in + j]} * w[j];
      ASSERT_TRUE(Near(logits[i], z, kTolerance)) << i;
      for (int64_t j = 0; j < in; ++j) {
        const double expected = i < samples ? scale * Derivative(objective, &h_reference[i * in + j]) : 0;
        ASSERT_TRUE(Near(h_gradients[i * in + j], expected, kTolerance)) << i << " " << j;
      }
    }
    for (int64_t j = 0; j < in; ++j) {
      ASSERT_TRUE(Near(w_gradients[j], scale * Derivative(objective, &w_reference[j]), kTolerance, n)) << j;
    }
    EXPECT_TRUE(Near(b_gradients[0], scale * Derivative(objective, &b_reference), kTolerance, n));
  }
}

TEST(LastLayer, AfterAReluGradientsOfWhatIsNotAboveZeroAreZero) {
  const std::vector<float> h = {0, 2, 0.5f, 0}, w = {1, -1}, b = {0}, labels = {1, 0};
  std::vector<float> h_gradients(4, 9.0f), w_gradients(2), b_gradients(1);
  LastLayerLossCpu(AsMatrix(std::span(h), 2, 2), {w.data(), b.data(), true}, labels, 2, 1, {},
                   {AsMatrix(std::span(h_gradients), 2, 2), w_gradients, b_gradients.data()});
  EXPECT_EQ(h_gradients[0], 0);
  EXPECT_EQ(h_gradients[3], 0);
  EXPECT_NEAR(h_gradients[1], 1 - 1 / (1 + std::exp(2.0)), 1e-6);
  EXPECT_NEAR(h_gradients[2], 1 / (1 + std::exp(-0.5)), 1e-6);
}

}  // namespace
}  // namespace sparrow
