#include "dense/cast_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <tuple>

#include "dense/cast.h"
#include "tests/dense/double_reference.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

// Ties, both signs, subnormal numbers, and what leaves each type's range, among random numbers.
std::vector<float> Values(size_t n) {
  std::vector<float> values = testing::RandomFloats(7, n);
  const float special[] = {0.0f, -0.0f, 1.00390625f, 1.01171875f, 65519.9f, 65520.0f, 1e-8f, 3.4e38f, INFINITY};
  for (size_t i = 0; i < n && i < std::size(special); ++i) values[i * 7 % n] = special[i];
  return values;
}

// Both functions on matrices of a precision with so many columns.
class CastGpuTest : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int>>> {
 protected:
  Precision precision() const { return std::get<0>(GetParam()); }
  int64_t cols() const { return std::get<1>(GetParam()); }

  // first: elements before the matrix in its memory, which decide how it is aligned.
  void ExpectCastEqualsCpu(int64_t rows, int64_t to_cols, int64_t stride, int64_t first) {
    SCOPED_TRACE(::testing::Message() << static_cast<int>(precision()) << ", " << rows << " x " << cols() << " to "
                                      << to_cols << ", stride " << stride << ", first " << first);
    const Stream stream;
    const size_t size = ElementBytes(precision());
    const std::vector<float> from = Values(rows * cols());
    std::vector<char> expected((first + rows * stride) * size, 5);
    CastCpu(precision(), {from.data(), rows, cols()}, {expected.data() + first * size, rows, to_cols, stride});
    DeviceBuffer<char> to = Upload(std::vector<char>(expected.size(), 5), stream);
    const DeviceBuffer<float> device_from = Upload(from, stream);
    CastGpu(precision(), device_from.data(), cols(), {to.data() + first * size, rows, to_cols, stride}, stream);
    ASSERT_TRUE(Download(to, stream) == expected);
  }

  // The bytes of the columns that are asked for, whatever they hold.
  void ExpectCopyCopies(int64_t rows, int64_t from_stride, int64_t to_stride, int64_t first) {
    SCOPED_TRACE(::testing::Message() << static_cast<int>(precision()) << ", " << rows << " x " << cols() << ", from "
                                      << from_stride << ", to " << to_stride << ", first " << first);
    const Stream stream;
    const size_t size = ElementBytes(precision());
    const int64_t from_cols = from_stride - 1;
    std::vector<char> from(rows * from_stride * size);
    // Numbers of every kind but NaN, whose bits a conversion may change.
    CastCpu(precision(), {Values(rows * from_stride).data(), rows, from_stride},
            {from.data(), rows, from_stride, from_stride});
    std::vector<char> expected((first + rows * to_stride) * size, 5);
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(&expected[(first + i * to_stride) * size], &from[i * from_stride * size], cols() * size);
    }
    DeviceBuffer<char> device_from = Upload(from, stream);
    DeviceBuffer<char> to = Upload(std::vector<char>(expected.size(), 5), stream);
    CopyGpu(precision(), {device_from.data(), rows, from_cols, from_stride},
            {to.data() + first * size, rows, cols(), to_stride}, stream);
    ASSERT_TRUE(Download(to, stream) == expected);
  }
};

TEST_P(CastGpuTest, EqualsTheCpusBitForBitAndThePaddingIsZero) {
  for (const int64_t rows : {0, 1, 31, 32, 33, 257}) {
    ExpectCastEqualsCpu(rows, PaddedColumns(cols()), PaddedColumns(cols()) + 8, 0);
    if (HasFatalFailure()) return;
  }
  ExpectCastEqualsCpu(33, cols(), cols(), 0);
  ExpectCastEqualsCpu(33, cols() + 21, cols() + 24, 8);
  ExpectCastEqualsCpu(33, cols() + 2, cols() + 3, 1);  // Rows that begin anywhere.
}

TEST_P(CastGpuTest, ACopyTakesTheColumnsThatAreAskedForBitForBit) {
  for (const int64_t rows : {0, 1, 31, 32, 33, 257}) {
    ExpectCopyCopies(rows, PaddedColumns(cols()) + 8, PaddedColumns(cols()) + 16, 0);
    if (HasFatalFailure()) return;
  }
  ExpectCopyCopies(33, cols() + 1, cols() + 24, 3);
  ExpectCopyCopies(33, cols() + 8, cols(), 8);
}

class CastGpuUnaligned : public OnGpu<> {};

TEST_F(CastGpuUnaligned, RowsNeedNotBeAligned) {
  const Stream stream;
  constexpr int64_t kRows = 65, kCols = 24;
  const std::vector<float> from = Values(kRows * kCols + 1);
  const DeviceBuffer<float> device_from = Upload(from, stream);
  for (const int64_t shift : {0, 1}) {  // Of what is read, and of what is written.
    for (const int64_t to_shift : {0, 1, 2, 4}) {
      std::vector<uint16_t> expected(kRows * 32 + 8, 5);
      CastCpu(Precision::kBfloat16, {from.data() + shift, kRows, kCols},
              {expected.data() + to_shift, kRows, kCols, 32});
      DeviceBuffer<uint16_t> to = Upload(std::vector<uint16_t>(expected.size(), 5), stream);
      CastGpu(Precision::kBfloat16, device_from.data() + shift, kCols, {to.data() + to_shift, kRows, kCols, 32},
              stream);
      ASSERT_EQ(Download(to, stream), expected) << shift << " " << to_shift;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CastGpuTest,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kTf32,
                                                              Precision::kBfloat16, Precision::kFloat16),
                                            ::testing::Values(1, 7, 8, 13, 16, 129, 1000, 4096)));

class CastGpuManyRows : public CastGpuTest {};

TEST_P(CastGpuManyRows, EqualTheCpus) {
  ExpectCastEqualsCpu(70'001, PaddedColumns(cols()), PaddedColumns(cols()) + 8, 0);
  ExpectCopyCopies(70'001, PaddedColumns(cols()) + 8, PaddedColumns(cols()), 0);
}

INSTANTIATE_TEST_SUITE_P(All, CastGpuManyRows,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBfloat16,
                                                              Precision::kFloat16),
                                            ::testing::Values(1, 13, 64)));

}  // namespace
}  // namespace sparrow
