#include "dense/activation_gpu.h"

#include <gtest/gtest.h>

#include <vector>

#include "dense/activation.h"
#include "dense/cast.h"
#include "tests/dense/double_reference.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

class ActivationGpuTest : public OnGpu<> {};

std::vector<uint16_t> Bits(Precision precision, const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  const int64_t n = static_cast<int64_t>(values.size());
  CastCpu(precision, {values.data(), 1, n}, {bits.data(), 1, n, n});
  return bits;
}

TEST_F(ActivationGpuTest, SumsAndMasksAsTheCpuDoes) {
  const Stream stream;
  for (int64_t rows : {0, 1, 31, 32, 33, 257, 70001}) {
    for (int64_t cols : {8, 24, 136}) {
      if (rows > 1000 && cols > 8) continue;
      const int64_t y_cols = cols == 24 ? 13 : cols;
      const std::vector<float> y = testing::RandomFloats(1, rows * cols);
      const std::vector<float> a = testing::RandomFloats(2, rows * cols);
      const std::vector<float> b = testing::RandomFloats(3, rows * cols);
      // The CPU's backward of a ReLU, on the columns that came out of one.
      std::vector<float> expected(rows * cols);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = a[i] + b[i];
      std::vector<float> sums(y_cols);
      BiasActivationBackwardCpu(Activation::kRelu, {y.data(), rows, y_cols, cols},
                                {expected.data(), rows, y_cols, cols}, sums);
      DeviceBuffer<float> to = Upload(a, stream);  // In place.
      DeviceBuffer<float> device_b = Upload(b, stream), device_y = Upload(y, stream);
      const DeviceMatrix matrix{to.data(), rows, cols, cols};
      SumGradientsReluGpu(Precision::kFloat32, {device_y.data(), rows, y_cols, cols}, matrix,
                          {device_b.data(), rows, cols, cols}, matrix, stream);
      ASSERT_EQ(Download(to, stream), expected) << rows << " x " << cols;
    }
  }
}

TEST_F(ActivationGpuTest, SixteenBitsAreSummedInFloatAndRoundedOnce) {
  const Stream stream;
  constexpr int64_t kRows = 33, kCols = 24;
  for (Precision precision : {Precision::kBfloat16, Precision::kFloat16}) {
    const std::vector<uint16_t> a = Bits(precision, testing::RandomFloats(2, kRows * kCols));
    const std::vector<uint16_t> b = Bits(precision, testing::RandomFloats(3, kRows * kCols));
    std::vector<float> sums(a.size());
    for (size_t i = 0; i < a.size(); ++i) sums[i] = FromBits(precision, a[i]) + FromBits(precision, b[i]);
    DeviceBuffer<uint16_t> device_a = Upload(a, stream), device_b = Upload(b, stream);
    DeviceBuffer<uint16_t> to = Upload(std::vector<uint16_t>(a.size()), stream);
    SumGradientsReluGpu(precision, /*y=*/{}, {device_a.data(), kRows, kCols, kCols},
                        {device_b.data(), kRows, kCols, kCols}, {to.data(), kRows, kCols, kCols}, stream);
    EXPECT_EQ(Download(to, stream), Bits(precision, sums));
    SumGradientsReluGpu(precision, {device_a.data(), kRows, kCols, kCols}, {device_b.data(), kRows, kCols, kCols},
                        /*b=*/{}, {to.data(), kRows, kCols, kCols}, stream);
    const std::vector<uint16_t> masked = Download(to, stream);
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(masked[i], FromBits(precision, a[i]) > 0 ? b[i] : 0) << i;
    }
  }
}

}  // namespace
}  // namespace sparrow
