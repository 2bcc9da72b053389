// The twins of dense/gelu.h.

#include "dense/gelu_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "dense/column_sums.h"
#include "dense/gelu.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/gpu_matrix.h"

namespace sparrow {
namespace {

using testing::GpuMatrix;
using testing::RandomFloats;
using testing::Rounded;
using testing::Roundoff;
using testing::View;

// Beside the rounding: the halves fuse different operations, and take different exponentials.
constexpr double kTolerance = 2e-6;

class GeluGpu : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int>>> {
 protected:
  void ExpectTwinsAgree(int64_t n, int64_t gap) {
    const auto [precision, cols] = GetParam();
    SCOPED_TRACE(::testing::Message() << testing::NameOf(precision) << ", " << n << " x " << cols << ", gap " << gap);
    const Stream stream;
    std::vector<float> x = RandomFloats(7 * n + cols, n * cols);
    const float special[] = {0.0f, -0.0f, 60.0f, -60.0f, 9.5f, -9.5f, -5.0f, 1e-7f};
    for (size_t i = 0; i < x.size(); ++i) x[i] = i % 11 == 0 ? special[i / 11 % std::size(special)] : 4 * x[i];
    x = Rounded(precision, x);
    const std::vector<float> dy = Rounded(precision, RandomFloats(n + cols, n * cols));
    const double u = 1.01 * Roundoff(precision);

    std::vector<float> expected(n * cols);
    GeluForwardCpu(View(x, n, cols), View(&expected, n, cols));
    const GpuMatrix d_x(precision, x, n, cols, cols + gap, stream);
    const GpuMatrix y(precision, n, cols, cols + 2 * gap, stream);
    GeluForwardGpu(precision, d_x.view(), y.view(), stream);
    const std::vector<float> actual = y.Values(stream);
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], u * std::abs(expected[i]) + kTolerance) << "of " << x[i];
    }

    std::vector<float> dx = dy;
    GeluBackwardCpu(View(x, n, cols), View(&dx, n, cols));
    const std::vector<float> before = RandomFloats(5, cols);
    DeviceBuffer<float> workspace = Upload(std::vector<float>(ColumnSumsWorkspaceFloats(n, cols), NAN), stream);
    DeviceBuffer<float> bias = Upload(before, stream);
    const GpuMatrix summed(precision, dy, n, cols, cols + gap, stream),
        plain(precision, dy, n, cols, cols + gap, stream);
    GeluBackwardGpu(precision, d_x.view(), summed.view(), bias.data(), workspace.data(), stream);
    GeluBackwardGpu(precision, d_x.view(), plain.view(), /*bias_gradients=*/nullptr, /*workspace=*/nullptr, stream);
    EXPECT_EQ(summed.Bytes(stream), plain.Bytes(stream)) << "with and without sums";
    const std::vector<float> gradients = summed.Values(stream), sums = Download(bias, stream);
    for (size_t i = 0; i < gradients.size(); ++i) {
      ASSERT_NEAR(gradients[i], dx[i], u * std::abs(dx[i]) + kTolerance) << "at " << x[i];
    }
    for (int64_t j = 0; j < cols; ++j) {
      double sum = before[j], absolute = std::abs(before[j]);
      for (int64_t i = 0; i < n; ++i) {
        sum += gradients[i * cols + j];
        absolute += std::abs(gradients[i * cols + j]);
      }
      ASSERT_NEAR(sums[j], sum, 1e-6 * absolute) << j;
    }
  }
};

TEST_P(GeluGpu, EqualsTheCpuHalf) {
  for (const int64_t n : {0, 1, 31, 32, 33, 257}) {
    for (const int64_t gap : {0, 1, 8}) ExpectTwinsAgree(n, gap);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GeluGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBfloat16,
                                                              Precision::kFloat16),
                                            ::testing::Values(1, 7, 8, 64, 129, 3072)));

class GeluGpuManyRows : public GeluGpu {};

TEST_P(GeluGpuManyRows, EqualsTheCpuHalf) { ExpectTwinsAgree(70'001, 0); }

INSTANTIATE_TEST_SUITE_P(All, GeluGpuManyRows,
                         ::testing::Values(std::tuple(Precision::kFloat32, 8), std::tuple(Precision::kBfloat16, 72)));

}  // namespace
}  // namespace sparrow
