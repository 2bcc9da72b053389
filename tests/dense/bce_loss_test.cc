#include "dense/bce_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/dense/double_reference.h"

namespace sparrow {
namespace {

using testing::Derivative;
using testing::RandomFloats;

TEST(BceLoss, SumAndGradientsEqualTheDefinition) {
  for (size_t n : {0, 1, 2, 31, 33, 257, 1025}) {
    std::vector<float> logits = RandomFloats(n + 1, n);
    std::vector<float> labels = RandomFloats(n + 2, n);
    for (float& z : logits) z *= 6;
    for (size_t i = 0; i < n; ++i) labels[i] = i % 3 == 0 ? 0.25f : labels[i] > 0;  // Soft labels too.
    std::vector<float> gradients(n, 9.0f);
    const double sum = BceWithLogitsCpu(logits, labels, gradients);
    double expected = 0;
    for (size_t i = 0; i < n; ++i) {
      double z = logits[i];
      const double y = labels[i];
      const auto loss = [&] {
        const double p = 1 / (1 + std::exp(-z));
        return -y * std::log(p) - (1 - y) * std::log(1 - p);
      };
      expected += loss();
      EXPECT_NEAR(gradients[i], Derivative(loss, &z), 1e-6) << i;
    }
    EXPECT_NEAR(sum, expected, 1e-10 * (1 + expected)) << n;
  }
}

TEST(BceLoss, LargeLogitsNeitherOverflowNorVanish) {
  const std::vector<float> logits = {1e4f, -1e4f, 1e4f, -1e4f};
  const std::vector<float> labels = {1, 0, 0, 1};
  std::vector<float> gradients(4);
  EXPECT_DOUBLE_EQ(BceWithLogitsCpu(logits, labels, gradients), 2e4);
  EXPECT_EQ(gradients, (std::vector<float>{0, 0, 1, -1}));
}

}  // namespace
}  // namespace sparrow
