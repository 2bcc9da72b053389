// The twins of dense/cross.h, as far as the CUDA half goes: what is done element by element.

#include "dense/cross_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "dense/cross.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/gpu_matrix.h"

namespace sparrow {
namespace {

using testing::GpuMatrix;
using testing::RandomFloats;
using testing::RepeatedRows;
using testing::Rounded;
using testing::Roundoff;
using testing::View;

// A product and a sum in float32, which one half may fuse.
constexpr double kTolerance = 0x1p-23;

constexpr int64_t kRank = 3;

class CrossGpu : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int>>> {
 protected:
  // stride: of all matrices.
  void ExpectTwinsAgree(int64_t n, int64_t in, int64_t stride) {
    const Precision precision = std::get<0>(GetParam());
    SCOPED_TRACE(::testing::Message() << testing::NameOf(precision) << ", n " << n << ", in " << in << ", stride "
                                      << stride);
    const Stream stream;
    const uint64_t seed = 31 * n + in;
    const std::vector<float> x0 = Rounded(precision, RandomFloats(seed, n * in));
    const std::vector<float> x = Rounded(precision, RandomFloats(seed + 1, n * in));
    const std::vector<float> v = RandomFloats(seed + 2, kRank * in), w = RandomFloats(seed + 3, in * kRank);
    const std::vector<float> b = RandomFloats(seed + 4, in);
    const CrossWeights weights{View(v, kRank, in), View(w, in, kRank), b};
    std::vector<float> projected(n * kRank), factor(n * in), y(n * in);
    const CrossActivations activations{View(&projected, n, kRank), View(&factor, n, in)};
    CrossForwardCpu(weights, View(x0, n, in), View(x, n, in), activations, View(&y, n, in));

    const GpuMatrix d_x0(precision, x0, n, in, stride, stream), d_factor(precision, factor, n, in, stride, stream);
    const GpuMatrix d_x(precision, x, n, in, stride, stream), d_y(precision, n, in, stride, stream);
    CrossCombineForwardGpu(precision, d_x0.view(), d_factor.view(), d_x.view(), d_y.view(), stream);
    const std::vector<float> actual = d_y.Values(stream);
    const double u = Roundoff(precision);
    for (size_t i = 0; i < y.size(); ++i) {
      // The factor is rounded on its way to the GPU.
      const double product = std::abs(double{x0[i]} * factor[i]);
      const double tolerance = u * (product + std::abs(y[i])) * (1 + u) + kTolerance * (product + std::abs(x[i]));
      ASSERT_NEAR(actual[i], y[i], tolerance) << "y " << i;
    }
    CrossCombineForwardGpu(precision, d_x0.view(), d_factor.view(), d_x.view(), d_x.view(), stream);
    EXPECT_EQ(d_x.Bytes(stream), d_y.Bytes(stream)) << "in place and apart must agree bit for bit";

    const std::vector<float> rounded_factor = Rounded(precision, factor);
    std::copy(rounded_factor.begin(), rounded_factor.end(), factor.begin());  // `activations` views it.
    const std::vector<float> gradients = Rounded(precision, RandomFloats(seed + 5, n * in));
    for (const bool first : {false, true}) {
      const std::vector<float> before = Rounded(precision, RandomFloats(seed + 6, n * in));
      std::vector<float> x0_gradients = first ? std::vector<float>(n * in) : before;
      std::vector<float> by_x = gradients, by_projected(n * kRank), by_factor(n * in), by_b(in);
      CrossBackwardInputCpu(weights, View(x0, n, in), activations, View(&by_x, n, in), View(&x0_gradients, n, in),
                            {View(&by_projected, n, kRank), View(&by_factor, n, in)}, by_b);
      const GpuMatrix d_gradients(precision, gradients, n, in, stride, stream);
      const GpuMatrix d_by_factor(precision, n, in, stride, stream);
      const GpuMatrix d_by_x0(precision, before, n, in, stride, stream);
      CrossCombineBackwardGpu(precision, d_gradients.view(), d_x0.view(), d_factor.view(), d_by_factor.view(),
                              d_by_x0.view(), first, stream);
      const std::vector<float> actual_factor = d_by_factor.Values(stream), actual_x0 = d_by_x0.Values(stream);
      for (size_t i = 0; i < by_factor.size(); ++i) {
        ASSERT_NEAR(actual_factor[i], by_factor[i], (u + kTolerance) * std::abs(by_factor[i])) << "factor " << i;
        const double added = std::abs(double{gradients[i]} * factor[i]) + std::abs(before[i]);
        ASSERT_NEAR(actual_x0[i], x0_gradients[i], u * std::abs(x0_gradients[i]) + kTolerance * added) << "x0 " << i;
      }
      if (first) {  // Into the matrix of gradients itself.
        CrossCombineBackwardGpu(precision, d_gradients.view(), d_x0.view(), d_factor.view(), d_gradients.view(),
                                d_by_x0.view(), first, stream);
        EXPECT_EQ(d_gradients.Bytes(stream), d_by_factor.Bytes(stream));
      }
    }
  }
};

TEST_P(CrossGpu, EqualsTheCpuHalfAndWritesNothingElse) {
  const int64_t in = std::get<1>(GetParam());
  for (const int64_t n : {0, 1, 31, 32, 33, 257}) {
    ExpectTwinsAgree(n, in, PaddedColumns(in));
    if (HasFatalFailure()) return;
  }
  ExpectTwinsAgree(33, in, PaddedColumns(in) + 24);
  ExpectTwinsAgree(33, in, PaddedColumns(in) + 3);
}

INSTANTIATE_TEST_SUITE_P(All, CrossGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kTf32,
                                                              Precision::kBfloat16, Precision::kFloat16),
                                            ::testing::Values(1, 7, 8, 16, 129, 1000, 3456, 4096)));

class CrossGpuManyRows : public CrossGpu {};

TEST_P(CrossGpuManyRows, EqualsTheCpuHalf) { ExpectTwinsAgree(70'001, std::get<1>(GetParam()), 16); }

INSTANTIATE_TEST_SUITE_P(All, CrossGpuManyRows,
                         ::testing::Values(std::tuple(Precision::kBfloat16, 13), std::tuple(Precision::kFloat32, 16)));

// MLPerf's width. Rows are computed apart from each other, so equal ones have equal results, and the CPU half computes
// some.
TEST(CrossGpuWide, RowsOfALargeBatchEqualThoseOfASmallOne) {
  if (GpuCount() == 0) GTEST_SKIP() << "NO GPU HERE: the CUDA half was compiled but not run";
  constexpr int64_t kFew = 257, kMany = 70'001, kIn = 3456;
  constexpr Precision kPrecision = Precision::kBfloat16;
  const Stream stream;
  const auto random = [&](uint64_t seed) { return Rounded(kPrecision, RandomFloats(seed, kFew * kIn)); };
  const GpuMatrix x0(kPrecision, random(1), kFew, kIn, kIn, stream),
      factor(kPrecision, random(2), kFew, kIn, kIn, stream);
  const GpuMatrix x(kPrecision, random(3), kFew, kIn, kIn, stream),
      before(kPrecision, random(4), kFew, kIn, kIn, stream);
  const RepeatedRows many_x0(x0, kMany, stream), many_factor(factor, kMany, stream), many_x(x, kMany, stream);
  const GpuMatrix y(kPrecision, kFew, kIn, kIn, stream);
  const RepeatedRows many_y(y, kMany, stream), many_before(before, kMany, stream);
  CrossCombineForwardGpu(kPrecision, x0.view(), factor.view(), x.view(), y.view(), stream);
  CrossCombineForwardGpu(kPrecision, many_x0.view(), many_factor.view(), many_x.view(), many_y.view(), stream);
  EXPECT_TRUE(many_y.Repeats(y, stream));
  const auto backward = [&](const auto& gradients, const auto& first, const auto& by, const auto& to,
                            const auto& by_x0) {
    CrossCombineBackwardGpu(kPrecision, gradients.view(), first.view(), by.view(), to.view(), by_x0.view(),
                            /*first=*/false, stream);
  };
  backward(x, x0, factor, y, before);
  backward(many_x, many_x0, many_factor, many_y, many_before);
  EXPECT_TRUE(many_y.Repeats(y, stream));
  EXPECT_TRUE(many_before.Repeats(before, stream));
}

}  // namespace
}  // namespace sparrow
