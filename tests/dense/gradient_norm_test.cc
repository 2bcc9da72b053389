#include "dense/gradient_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/dense/double_reference.h"

namespace sparrow {
namespace {

using testing::RandomFloats;

TEST(GradientNorm, EqualsTheDefinition) {
  for (size_t n : {0, 1, 2, 31, 33, 257, 4096, 4097, 70'001}) {
    const std::vector<float> gradients = RandomFloats(n + 3, n);
    long double sum = 0;
    for (const float g : gradients) sum += static_cast<long double>(g) * g;
    const double norm = 0.25 * std::sqrt(static_cast<double>(sum));
    const GradientClip clip = GradientNormCpu(gradients, -0.25, {.max_norm = 0.5, .eps = 0.125});
    EXPECT_NEAR(clip.norm, norm, 1e-13 * (1 + norm)) << n;
    EXPECT_NEAR(clip.scale, std::min(1.0, 0.5 / (norm + 0.125)), 1e-13) << n;
  }
}

TEST(GradientNorm, ScalesOnlyWhatIsTooLong) {
  const std::vector<float> gradients = {3, 4};
  EXPECT_EQ(GradientNormCpu(gradients, 1, {.max_norm = 2.5, .eps = 0}).scale, 0.5);
  EXPECT_EQ(GradientNormCpu(gradients, 1, {.max_norm = 6, .eps = 0}).scale, 1);
  EXPECT_EQ(GradientNormCpu(gradients, 1, {}).scale, 1);
  EXPECT_EQ(GradientNormCpu(std::vector<float>{0, 0}, 1, {.max_norm = 1, .eps = 0}).scale, 1);
}

TEST(GradientNorm, SquaresBeyondSinglePrecisionNeitherOverflowNorVanish) {
  const std::vector<float> large = {3e38f, 0}, small = {3e-38f, 0};
  EXPECT_EQ(GradientNormCpu(large, 1, {}).norm, static_cast<double>(large[0]));
  EXPECT_EQ(GradientNormCpu(small, 1, {}).norm, static_cast<double>(small[0]));
}

TEST(GradientNorm, NanIsNotHidden) {
  std::vector<float> gradients(100, 1.0f);
  gradients[77] = std::numeric_limits<float>::quiet_NaN();
  const GradientClip clip = GradientNormCpu(gradients, 1, {.max_norm = 1});
  EXPECT_TRUE(std::isnan(clip.norm));
  EXPECT_TRUE(std::isnan(clip.scale));
}

}  // namespace
}  // namespace sparrow
