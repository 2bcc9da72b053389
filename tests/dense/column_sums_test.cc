#include "dense/column_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "tests/dense/double_reference.h"
#include "tests/dense/gpu_matrix.h"

namespace sparrow {
namespace {

using testing::GpuMatrix;
using testing::RandomFloats;
using testing::Rounded;

class ColumnSums : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int>>> {
 protected:
  void ExpectAdded(int64_t n, int64_t gap) {
    const auto [precision, cols] = GetParam();
    SCOPED_TRACE(::testing::Message() << testing::NameOf(precision) << ", " << n << " x " << cols << ", gap " << gap);
    const Stream stream;
    const std::vector<float> values = Rounded(precision, RandomFloats(7 * n + cols, n * cols));
    const std::vector<float> before = RandomFloats(3, cols);
    const GpuMatrix matrix(precision, values, n, cols, cols + gap, stream);
    DeviceBuffer<float> workspace = Upload(std::vector<float>(ColumnSumsWorkspaceFloats(n, cols), NAN), stream);
    DeviceBuffer<float> sums = Upload(before, stream), again = Upload(before, stream);
    ColumnSumsAddGpu(precision, matrix.view(), sums.data(), workspace.data(), stream);
    ColumnSumsAddGpu(precision, matrix.view(), again.data(), workspace.data(), stream);
    const std::vector<float> actual = Download(sums, stream);
    EXPECT_EQ(actual, Download(again, stream)) << "two runs must agree bit for bit";
    for (int64_t j = 0; j < cols; ++j) {
      double sum = before[j], absolute = std::abs(before[j]);
      for (int64_t i = 0; i < n; ++i) {
        sum += values[i * cols + j];
        absolute += std::abs(values[i * cols + j]);
      }
      ASSERT_NEAR(actual[j], sum, 1e-6 * absolute) << j;  // Threads sum some rows each in float32.
    }
  }
};

TEST_P(ColumnSums, AreAddedToWhatIsThere) {
  for (const int64_t n : {0, 1, 31, 32, 33, 257}) {
    for (const int64_t gap : {0, 1, 8}) ExpectAdded(n, gap);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ColumnSums,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBfloat16,
                                                              Precision::kFloat16),
                                            ::testing::Values(1, 7, 8, 64, 129, 768, 3072)));

class ColumnSumsOfManyRows : public ColumnSums {};

TEST_P(ColumnSumsOfManyRows, AreAddedToWhatIsThere) { ExpectAdded(70'001, 0); }

INSTANTIATE_TEST_SUITE_P(All, ColumnSumsOfManyRows,
                         ::testing::Values(std::tuple(Precision::kFloat32, 8), std::tuple(Precision::kBfloat16, 200)));

}  // namespace
}  // namespace sparrow
