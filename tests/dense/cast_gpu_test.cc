#include "dense/cast_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "dense/cast.h"
#include "tests/dense/double_reference.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

class CastGpuTest : public OnGpu<> {};

// Ties, both signs, subnormal numbers, and what leaves each type's range, among random numbers.
std::vector<float> Values(size_t n) {
  std::vector<float> values = testing::RandomFloats(7, n);
  const float special[] = {0.0f, -0.0f, 1.00390625f, 1.01171875f, 65519.9f, 65520.0f, 1e-8f, 3.4e38f, INFINITY};
  for (size_t i = 0; i < n && i < std::size(special); ++i) values[i * 7 % n] = special[i];
  return values;
}

TEST_F(CastGpuTest, EqualsTheCpusBitForBitAndThePaddingIsZero) {
  const Stream stream;
  for (Precision precision : {Precision::kFloat32, Precision::kTf32, Precision::kBfloat16, Precision::kFloat16}) {
    for (int64_t rows : {0, 1, 31, 32, 33, 257, 70001}) {
      for (int64_t cols : {1, 8, 13, 20, 44}) {
        const int64_t stride = PaddedColumns(cols) + 8;
        const std::vector<float> from = Values(rows * cols);
        std::vector<char> expected(rows * stride * ElementBytes(precision), 5);
        CastCpu(precision, {from.data(), rows, cols}, {expected.data(), rows, PaddedColumns(cols), stride});
        DeviceBuffer<char> to = Upload(std::vector<char>(expected.size(), 5), stream);
        const DeviceBuffer<float> device_from = Upload(from, stream);
        CastGpu(precision, device_from.data(), cols, {to.data(), rows, PaddedColumns(cols), stride}, stream);
        ASSERT_EQ(Download(to, stream), expected) << static_cast<int>(precision) << " " << rows << " x " << cols;
      }
    }
  }
}

TEST_F(CastGpuTest, ACopyTakesTheColumnsThatAreAskedFor) {
  const Stream stream;
  const std::vector<float> from = Values(33 * 16);
  const DeviceBuffer<float> device_from = Upload(from, stream);
  DeviceBuffer<float> to = Upload(std::vector<float>(33 * 40, 9.0f), stream);
  CopyGpu(Precision::kFloat32, {const_cast<float*>(device_from.data()), 33, 16, 16}, {to.data() + 3, 33, 13, 40},
          stream);
  const std::vector<float> result = Download(to, stream);
  for (int64_t i = 0; i < 33; ++i) {
    for (int64_t j = 0; j < 40; ++j) {
      const float expected = j < 3 || j >= 16 ? 9.0f : from[i * 16 + j - 3];
      ASSERT_EQ(std::memcmp(&result[i * 40 + j], &expected, 4), 0) << i << " " << j;
    }
  }
}

TEST_F(CastGpuTest, RowsNeedNotBeAligned) {
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

}  // namespace
}  // namespace sparrow
