// The twins of dense/bce_loss.h.

#include "dense/bce_loss_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "dense/bce_loss.h"
#include "tests/dense/double_reference.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

using testing::RandomFloats;

// Terms are computed in double precision by both halves, whose exp and log1p differ in the last bits, and summed in
// different orders.
constexpr double kSumTolerance = 1e-12;
// A gradient is rounded to float once: the last bits of the double can tip it to the neighbour, which is at most 2^-24
// of 1 away.
constexpr double kGradientTolerance = 6e-8;

class BceLossGpu : public OnGpu<> {
 protected:
  std::pair<double, std::vector<float>> LossOf(const std::vector<float>& logits, const std::vector<float>& labels) {
    const Stream stream;
    const size_t n = logits.size();
    const auto z = Upload(logits, stream);
    const auto y = Upload(labels, stream);
    auto gradients = Upload(std::vector<float>(n + 8, kUntouched), stream);
    auto sum = Upload(std::vector<double>{-1}, stream);
    auto sums = MakeGridSums(stream);
    CHECK(sums.has_value());
    BceWithLogitsGpu(z.data(), y.data(), static_cast<int64_t>(n), gradients.data(), sum.data(), sums->data(), stream);
    std::vector<float> result = Download(gradients, stream);
    for (size_t i = n; i < n + 8; ++i) EXPECT_EQ(result[i], kUntouched) << "written beyond the end";
    result.resize(n);
    return {Download(sum, stream)[0], result};
  }

 private:
  static constexpr float kUntouched = -123;
};

TEST_F(BceLossGpu, EqualsTheCpuHalfAndItself) {
  for (size_t n : {0, 1, 31, 32, 33, 257, 70'001, 1'000'003}) {
    std::vector<float> logits = RandomFloats(n + 1, n);
    std::vector<float> labels = RandomFloats(n + 2, n);
    for (float& z : logits) z *= 6;
    for (size_t i = 0; i < n; ++i) labels[i] = i % 3 == 0 ? 0.25f : labels[i] > 0;  // Soft labels too.
    std::vector<float> expected(n);
    const double expected_sum = BceWithLogitsCpu(logits, labels, expected);
    const auto [sum, gradients] = LossOf(logits, labels);
    EXPECT_NEAR(sum, expected_sum, kSumTolerance * expected_sum) << n;
    for (size_t i = 0; i < n; ++i) ASSERT_NEAR(gradients[i], expected[i], kGradientTolerance) << n << " " << i;
    const auto again = LossOf(logits, labels);
    EXPECT_EQ(again.first, sum) << n << ": two runs must agree bit for bit";
    EXPECT_EQ(again.second, gradients) << n;
  }
}

TEST_F(BceLossGpu, LargeLogitsNeitherOverflowNorVanish) {
  const auto [sum, gradients] = LossOf({1e4f, -1e4f, 1e4f, -1e4f}, {1, 0, 0, 1});
  EXPECT_DOUBLE_EQ(sum, 2e4);
  EXPECT_EQ(gradients, (std::vector<float>{0, 0, 1, -1}));
}

TEST_F(BceLossGpu, NanIsNotHidden) {
  const auto [sum, gradients] = LossOf({1, std::numeric_limits<float>::quiet_NaN(), 2}, {1, 0, 0});
  EXPECT_TRUE(std::isnan(sum));
  EXPECT_TRUE(std::isnan(gradients[1]));
  EXPECT_FALSE(std::isnan(gradients[0]));
}

}  // namespace
}  // namespace sparrow
