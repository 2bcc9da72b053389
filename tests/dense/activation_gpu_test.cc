#include "dense/activation_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "dense/activation.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/gpu_matrix.h"

namespace sparrow {
namespace {

using testing::GpuMatrix;
using testing::RandomFloats;
using testing::Rounded;

class ActivationGpu : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int>>> {
 protected:
  // With and without what is optional, in place and apart; rows `gap` further apart than they must be.
  void ExpectTwinsAgree(int64_t rows, int64_t cols, int64_t y_cols, int64_t gap) {
    const Precision precision = std::get<0>(GetParam());
    SCOPED_TRACE(::testing::Message() << testing::NameOf(precision) << ", " << rows << " x " << cols << ", y " << y_cols
                                      << ", gap " << gap);
    const Stream stream;
    const uint64_t seed = 31 * rows + cols;
    std::vector<float> y = Rounded(precision, RandomFloats(seed, rows * y_cols));
    for (size_t i = 0; i < y.size(); i += 5) y[i] = i % 2 == 0 ? 0.0f : -0.0f;
    const std::vector<float> a = Rounded(precision, RandomFloats(seed + 1, rows * cols));
    const std::vector<float> b = Rounded(precision, RandomFloats(seed + 2, rows * cols));
    const GpuMatrix d_y(precision, y, rows, y_cols, cols + 2 * gap, stream);
    const GpuMatrix d_b(precision, b, rows, cols, cols + 3 * gap, stream);
    for (const bool with_y : {true, false}) {
      for (const bool with_b : {true, false}) {
        std::vector<float> sum(rows * cols);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = with_b ? a[i] + b[i] : a[i];
        std::vector<float> expected = Rounded(precision, sum);  // Summed in float32, and rounded once.
        std::vector<float> column_sums(y_cols);
        if (with_y) {
          BiasActivationBackwardCpu(Activation::kRelu, {y.data(), rows, y_cols}, {expected.data(), rows, y_cols, cols},
                                    column_sums);
        }
        const DeviceMatrix outputs = with_y ? d_y.view() : DeviceMatrix{};
        const DeviceMatrix other = with_b ? d_b.view() : DeviceMatrix{};
        const GpuMatrix d_a(precision, a, rows, cols, cols + gap, stream),
            to(precision, rows, cols, cols + gap, stream);
        SumGradientsReluGpu(precision, outputs, d_a.view(), other, to.view(), stream);
        ASSERT_EQ(to.Values(stream), expected) << "with y " << with_y << ", with b " << with_b;
        SumGradientsReluGpu(precision, outputs, d_a.view(), other, d_a.view(), stream);
        ASSERT_EQ(d_a.Bytes(stream), to.Bytes(stream)) << "in place and apart must agree bit for bit";
      }
    }
  }
};

TEST_P(ActivationGpu, SumsAndMasksAsTheCpuDoesAndWritesNothingElse) {
  const int64_t cols = std::get<1>(GetParam());
  for (const int64_t rows : {0, 1, 31, 32, 33, 257}) {
    ExpectTwinsAgree(rows, cols, cols, 0);
    ExpectTwinsAgree(rows, cols, cols - 3, 8);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ActivationGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kTf32,
                                                              Precision::kBfloat16, Precision::kFloat16),
                                            ::testing::Values(8, 16, 24, 128, 136, 1024, 4096)));

class ActivationGpuManyRows : public ActivationGpu {};

TEST_P(ActivationGpuManyRows, SumsAndMasksAsTheCpuDoes) {
  const int64_t cols = std::get<1>(GetParam());
  ExpectTwinsAgree(70'001, cols, cols - 1, 0);
}

INSTANTIATE_TEST_SUITE_P(All, ActivationGpuManyRows,
                         ::testing::Values(std::tuple(Precision::kFloat32, 8), std::tuple(Precision::kBfloat16, 72),
                                           std::tuple(Precision::kFloat16, 16)));

class ActivationGpuNan : public OnGpu<::testing::TestWithParam<Precision>> {};

// A model that has diverged must be seen: neither a gradient's NaN nor an output's becomes 0.
TEST_P(ActivationGpuNan, GradientsPassWhereTheOutputIsNanAsOnTheCpu) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t kRows = 3, kCols = 16;
  const Precision precision = GetParam();
  const Stream stream;
  std::vector<float> y(kRows * kCols, 1.0f), a(kRows * kCols, 0.5f);
  const auto bits = [&](const std::vector<float>& values) {
    std::vector<char> bytes(values.size() * ElementBytes(precision));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t nan16 = precision == Precision::kBfloat16 ? 0x7fc0 : 0x7e00;
      const uint16_t half = std::isnan(values[i]) ? nan16 : testing::ToBits(precision, values[i]);
      if (ElementBytes(precision) == 4) {
        std::memcpy(&bytes[4 * i], &values[i], 4);
      } else {
        std::memcpy(&bytes[2 * i], &half, 2);
      }
    }
    return bytes;
  };
  y[3] = kNan;           // Passes.
  y[17] = a[17] = kNan;  // Passes.
  y[20] = 0;             // Does not.
  y[40] = -1;
  a[40] = kNan;  // Does not.
  a[45] = kNan;  // Passes.
  std::vector<float> expected = a, sums(kCols);
  BiasActivationBackwardCpu(Activation::kRelu, {y.data(), kRows, kCols}, {expected.data(), kRows, kCols}, sums);
  EXPECT_EQ(expected[3], 0.5f);
  EXPECT_EQ(expected[40], 0);
  DeviceBuffer<char> d_y = Upload(bits(y), stream), d_a = Upload(bits(a), stream);
  const DeviceMatrix matrix{d_a.data(), kRows, kCols, kCols};
  SumGradientsReluGpu(precision, {d_y.data(), kRows, kCols, kCols}, matrix, /*b=*/{}, matrix, stream);
  const std::vector<char> actual = Download(d_a, stream);
  for (size_t i = 0; i < expected.size(); ++i) {
    float value;
    uint16_t half;
    std::memcpy(&half, &actual[i * ElementBytes(precision)], 2);
    if (ElementBytes(precision) == 4) {
      std::memcpy(&value, &actual[i * 4], 4);
    } else {
      value = testing::FromBits(precision, half);
    }
    EXPECT_EQ(std::isnan(value), std::isnan(expected[i])) << i;
    if (!std::isnan(expected[i])) {
      EXPECT_EQ(value, expected[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ActivationGpuNan,
                         ::testing::Values(Precision::kFloat32, Precision::kBfloat16, Precision::kFloat16),
                         [](const auto& info) { return testing::NameOf(info.param); });

}  // namespace
}  // namespace sparrow
