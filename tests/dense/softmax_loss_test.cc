#include "dense/softmax_loss.h"

#include <gtest/gtest.h>

#include <limits>

#include "dense/dropout.h"
#include "dense/gelu.h"
#include "dense/token_embedding.h"
#include "tests/dense/gpt2_reference.h"

namespace sparrow {
namespace {

using testing::Derivative;
using testing::Near;
using testing::RandomFloats;
using testing::ToDouble;
using testing::Vector;

TEST(SoftmaxLoss, EqualsDoubleReferenceAndItsDerivatives) {
  constexpr int64_t kRows = 19, kClasses = 23;
  std::vector<float> logits = RandomFloats(1, kRows * kClasses);
  for (float& l : logits) l *= 5;
  std::vector<uint16_t> targets(kRows);
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<uint16_t>(i * 7 % kClasses);
  Vector values = ToDouble(logits);
  const auto objective = [&] {
    double sum = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      const auto row = values.begin() + i * kClasses;
      sum += testing::CrossEntropy(Vector(row, row + kClasses), targets[i]);
    }
    return sum;
  };
  const auto view = AsMatrix(std::span(logits), kRows, kClasses);
  EXPECT_TRUE(Near(SoftmaxLossCpu(view, targets), objective(), 1e-6));
  EXPECT_TRUE(Near(SoftmaxLossAndGradientsCpu(view, targets), objective(), 1e-6));
  for (size_t i = 0; i < logits.size(); i += 3) {
    ASSERT_TRUE(Near(logits[i], Derivative(objective, &values[i]), 1e-5)) << i;
  }
}

TEST(SoftmaxLoss, LargeLogitsDoNotOverflowAndNanIsSeen) {
  std::vector<float> logits = {1e4f, -1e4f, 1e4f, 1e4f};
  const std::vector<uint16_t> targets = {0, 1};
  EXPECT_NEAR(SoftmaxLossCpu(AsMatrix(std::span(logits), 2, 2), targets), std::log(2.0), 1e-6);
  logits[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SoftmaxLossCpu(AsMatrix(std::span(logits), 2, 2), targets)));
  logits = {-1.0f, std::numeric_limits<float>::quiet_NaN(), 0, 0};
  EXPECT_TRUE(std::isnan(SoftmaxLossCpu(AsMatrix(std::span(logits), 2, 2), targets)));
}

TEST(Gelu, EqualsDoubleReferenceAndItsDerivative) {
  std::vector<float> x;
  for (float v = -12; v < 12; v += 0.37f) x.push_back(v);
  for (const float v : {0.0f, -0.0f, 60.0f, -60.0f, 1e-30f}) x.push_back(v);
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> y(n), gradients(n, 2.0f);
  GeluForwardCpu(AsMatrix(std::span(x), n, 1), AsMatrix(std::span(y), n, 1));
  GeluBackwardCpu(AsMatrix(std::span(x), n, 1), AsMatrix(std::span(gradients), n, 1));
  for (int64_t i = 0; i < n; ++i) {
    double v = x[i];
    EXPECT_TRUE(Near(y[i], testing::Gelu(v), 1e-6)) << v;
    EXPECT_TRUE(Near(gradients[i], 2 * Derivative([&] { return testing::Gelu(v); }, &v), 1e-5)) << v;
  }
}

TEST(TokenEmbedding, AddsVectorsAndSumsGradientsOfEqualTokens) {
  const std::vector<uint16_t> tokens = {2, 0, 2, 2, 1, 2};  // Two sequences of three.
  const std::vector<float> words = RandomFloats(1, 3 * 20), places = RandomFloats(2, 4 * 20),
                           c = RandomFloats(3, 6 * 20);
  std::vector<float> x(6 * 20), dw(3 * 20, 1.0f), dp(4 * 20, 1.0f);
  TokenEmbeddingForwardCpu(tokens, 3, AsMatrix(std::span(words), 3, 20), AsMatrix(std::span(places), 4, 20),
                           AsMatrix(std::span(x), 6, 20));
  TokenEmbeddingBackwardCpu(tokens, 3, AsMatrix(std::span(c), 6, 20), AsMatrix(std::span(dw), 3, 20),
                            AsMatrix(std::span(dp), 4, 20));
  for (int64_t j = 0; j < 20; ++j) {
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(x[i * 20 + j], words[tokens[i] * 20 + j] + places[i % 3 * 20 + j]);
    EXPECT_EQ(dw[2 * 20 + j], 1 + c[j] + c[2 * 20 + j] + c[3 * 20 + j] + c[5 * 20 + j]);
    EXPECT_EQ(dp[2 * 20 + j], 1 + c[2 * 20 + j] + c[5 * 20 + j]);
    EXPECT_EQ(dp[3 * 20 + j], 1);  // A position that no sequence has.
  }
}

TEST(Dropout, KeepsTheMeanAndDependsOnElementAndStream) {
  constexpr size_t kElements = 1 << 18;
  std::vector<float> values(kElements, 1.0f), parts(kElements, 1.0f), other(kElements, 1.0f);
  DropoutCpu(Dropout::Of(0.3, 5), 0, values);
  DropoutCpu(Dropout::Of(0.3, 5), 0, std::span(parts).first(1000));
  DropoutCpu(Dropout::Of(0.3, 5), 1000, std::span(parts).subspan(1000));
  DropoutCpu(Dropout::Of(0.3, 6), 0, other);
  EXPECT_EQ(values, parts);
  double sum = 0, both = 0;
  for (size_t i = 0; i < kElements; ++i) {
    ASSERT_TRUE(values[i] == 0 || Near(values[i], 1 / 0.7, 1e-6));
    sum += values[i];
    both += values[i] != 0 && other[i] != 0 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kElements, 1, 0.01);
  EXPECT_NEAR(both / kElements, 0.49, 0.01);  // Independent.
  DropoutCpu(Dropout::Of(0, 5), 0, other);
  EXPECT_FALSE(Dropout::Of(0, 5).enabled());
}

}  // namespace
}  // namespace sparrow
