// The twins of dense/softmax_loss.h.

#include "dense/softmax_loss_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "dense/softmax_loss.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/gpu_matrix.h"

namespace sparrow {
namespace {

using testing::GpuMatrix;
using testing::RandomFloats;
using testing::Rounded;
using testing::Roundoff;
using testing::View;

// Of a probability, and of a loss: sums of up to 65,536 exponentials in float32.
constexpr double kTolerance = 4e-6;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Logits on the GPU, of which the columns from `classes` on hold large numbers that nothing must read.
class OnDevice {
 public:
  OnDevice(Precision precision, const std::vector<float>& logits, const std::vector<uint16_t>& targets, int64_t classes,
           int64_t cols, int64_t gap)
      : precision_(precision),
        n_(static_cast<int64_t>(targets.size())),
        classes_(classes),
        logits_(precision, WithPadding(logits, n_, classes, cols), n_, cols, cols + gap, stream_),
        targets_(Upload(targets, stream_)),
        row_losses_(Upload(std::vector<float>(n_, kNan), stream_)),
        loss_sum_(Upload(std::vector<double>{kBefore}, stream_)) {}

  // What it adds to the sum of losses.
  double Run(const float* scale) {
    loss_sum_.CopyFrom(std::vector<double>{kBefore}, stream_);
    DeviceBuffer<float> d_scale = Upload(std::vector<float>{scale == nullptr ? 0 : *scale}, stream_);
    SoftmaxLossGpu(precision_, logits_.view(), targets_.data(), classes_, scale == nullptr ? nullptr : d_scale.data(),
                   row_losses_.data(), loss_sum_.data(), stream_);
    return Download(loss_sum_, stream_)[0] - kBefore;
  }
  std::vector<char> Bytes() const { return logits_.Bytes(stream_); }
  std::vector<float> Values() const { return logits_.Values(stream_); }
  std::vector<float> RowLosses() const { return Download(row_losses_, stream_); }

 private:
  static constexpr double kBefore = 2.5;
  static std::vector<float> WithPadding(const std::vector<float>& logits, int64_t n, int64_t classes, int64_t cols) {
    std::vector<float> padded(n * cols, 1000.0f);
    for (int64_t i = 0; i < n; ++i) std::copy_n(&logits[i * classes], classes, &padded[i * cols]);
    return padded;
  }

  const Stream stream_;
  const Precision precision_;
  const int64_t n_, classes_;
  GpuMatrix logits_;
  DeviceBuffer<uint16_t> targets_;
  DeviceBuffer<float> row_losses_;
  DeviceBuffer<double> loss_sum_;
};

class SoftmaxLossGpuTest : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int>>> {
 protected:
  void ExpectTwinsAgree(int64_t n, int64_t cols, int64_t gap) {
    const auto [precision, classes] = GetParam();
    SCOPED_TRACE(::testing::Message() << testing::NameOf(precision) << ", " << n << " x " << classes << ", columns "
                                      << cols << ", gap " << gap);
    std::vector<float> logits = RandomFloats(31 * n + classes, n * classes);
    for (float& logit : logits) logit = 6 * logit - 2;
    logits = Rounded(precision, logits);
    std::vector<uint16_t> targets(n);
    for (int64_t i = 0; i < n; ++i) targets[i] = static_cast<uint16_t>((i * 7919 + classes - 1) % classes);
    std::vector<float> expected = logits;
    const double loss = SoftmaxLossAndGradientsCpu(View(&expected, n, classes), targets);
    const float scale = precision == Precision::kFloat16 ? 1024 : 0.25f;

    OnDevice d(precision, logits, targets, classes, cols, gap);
    const std::vector<char> before = d.Bytes();
    const double loss_alone = d.Run(/*scale=*/nullptr);
    EXPECT_EQ(d.Bytes(), before) << "without a scale logits stay";
    const std::vector<float> rows_alone = d.RowLosses();
    const double actual_loss = d.Run(&scale);
    EXPECT_EQ(actual_loss, loss_alone);
    EXPECT_EQ(d.RowLosses(), rows_alone);
    ASSERT_NEAR(actual_loss, loss, kTolerance * (loss + static_cast<double>(n) * 6));

    const std::vector<float> actual = d.Values();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const float value = actual[i * cols + j];
        if (j >= classes) {
          ASSERT_EQ(value, 0) << "padding, row " << i << ", column " << j;
          continue;
        }
        const double gradient = expected[i * classes + j], probability = gradient + (j == targets[i] ? 1 : 0);
        const double subnormal = precision == Precision::kFloat16 ? 0x1p-25 : 0;
        ASSERT_NEAR(value, scale * gradient,
                    1.01 * Roundoff(precision) * scale * std::abs(gradient) +
                        scale * (kTolerance * probability + (j == targets[i] ? 1.2e-7 : 0)) + subnormal)
            << "row " << i << ", column " << j;
      }
    }
    OnDevice again(precision, logits, targets, classes, cols, gap);
    EXPECT_EQ(again.Run(&scale), actual_loss) << "two runs must agree bit for bit";
    EXPECT_EQ(again.Bytes(), d.Bytes());
  }
};

TEST_P(SoftmaxLossGpuTest, EqualsTheCpuHalf) {
  const int64_t classes = std::get<1>(GetParam());
  for (const int64_t n : {0, 1, 31, 32, 33}) {
    ExpectTwinsAgree(n, PaddedColumns(classes), 0);
    if (HasFatalFailure()) return;
  }
  ExpectTwinsAgree(5, PaddedColumns(classes) + 64, 8);
  ExpectTwinsAgree(5, classes, 0);
  ExpectTwinsAgree(5, classes + 1, 2);  // Rows that begin anywhere.
}

INSTANTIATE_TEST_SUITE_P(All, SoftmaxLossGpuTest,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBfloat16,
                                                              Precision::kFloat16),
                                            ::testing::Values(1, 2, 65, 128, 1001, 8192, 50257, 65536)));

class SoftmaxLossGpuManyRows : public SoftmaxLossGpuTest {};

TEST_P(SoftmaxLossGpuManyRows, EqualsTheCpuHalf) { ExpectTwinsAgree(70'001, 16, 0); }

INSTANTIATE_TEST_SUITE_P(All, SoftmaxLossGpuManyRows,
                         ::testing::Values(std::tuple(Precision::kFloat32, 13), std::tuple(Precision::kBfloat16, 13)));

class SoftmaxLossGpuEdges : public OnGpu<::testing::TestWithParam<Precision>> {};

TEST_P(SoftmaxLossGpuEdges, LargeLogitsDoNotOverflow) {
  OnDevice d(GetParam(), {1e4f, -1e4f, 1e4f, 1e4f}, {0, 1}, 2, 8, 0);
  const float scale = 1;
  EXPECT_NEAR(d.Run(&scale), std::log(2.0), 1e-6);
  const std::vector<float> gradients = d.Values();
  EXPECT_EQ(gradients[0], 0);
  EXPECT_EQ(gradients[8], 0.5f);
  EXPECT_EQ(gradients[9], -0.5f);
}

TEST_P(SoftmaxLossGpuEdges, NanIsSeenInItsRowAlone) {
  if (GetParam() == Precision::kFloat16) GTEST_SKIP() << "a matrix of tests has no NaN in float16";
  constexpr int64_t kClasses = 4096;
  std::vector<float> logits = RandomFloats(1, 2 * kClasses);
  logits[kClasses + 4000] = kNan;
  OnDevice d(GetParam(), Rounded(GetParam(), logits), {1, 2}, kClasses, kClasses, 0);
  const float scale = 1;
  EXPECT_TRUE(std::isnan(d.Run(&scale)));
  EXPECT_FALSE(std::isnan(d.RowLosses()[0]));
  EXPECT_TRUE(std::isnan(d.RowLosses()[1]));
  const std::vector<float> gradients = d.Values();
  for (int64_t j = 0; j < kClasses; ++j) {
    ASSERT_FALSE(std::isnan(gradients[j])) << j;
    ASSERT_TRUE(std::isnan(gradients[kClasses + j])) << j;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SoftmaxLossGpuEdges,
                         ::testing::Values(Precision::kFloat32, Precision::kBfloat16, Precision::kFloat16),
                         [](const auto& info) { return testing::NameOf(info.param); });

}  // namespace
}  // namespace sparrow
