#include "dense/loss_scale_gpu.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/cuda/graph.h"
#include "dense/loss_scale.h"
#include "tests/dense/device_values.h"

namespace sparrow {
namespace {

using testing::OnDevice;
using testing::RandomFloats;
using testing::Values;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using LossScaleGpuTest = OnGpu<>;

uint64_t CountOf(const Values& values, uint64_t before = 0) {
  const Stream stream;
  const OnDevice device = values.ToDevice(stream);
  DeviceBuffer<uint64_t> count = Upload(std::vector<uint64_t>{before}, stream);
  CountNotFiniteGpu(device.matrix, values.precision, count.data(), stream);
  return Download(count, stream)[0];
}

TEST_F(LossScaleGpuTest, CountsWhatTheCpuCountsAndAddsIt) {
  for (const Precision precision : {Precision::kFloat32, Precision::kFloat16, Precision::kBfloat16}) {
    for (const int64_t rows : {0, 1, 31, 32, 33, 257, 70001}) {
      for (const int64_t cols : {1, 7, 8, 16, 129}) {
        for (const int64_t gap : {0, 3, 8}) {  // Random fills gaps with NaN, which are not to be counted.
          if (rows > 1000 && cols > 16) continue;
          Values values = Values::Random(precision, rows, cols, cols + gap, 3 * rows + cols);
          for (int64_t i = 0; i < rows * cols; i += 97) {
            values.at(i / cols, i % cols) = i % 2 == 0 ? kNan : i % 3 == 0 ? kInfinity : -kInfinity;
          }
          const uint64_t expected = CountNotFiniteCpu(values.view());
          ASSERT_EQ(expected, static_cast<uint64_t>((rows * cols + 96) / 97));
          ASSERT_EQ(CountOf(values, 5), 5 + expected) << rows << " x " << cols << " and " << gap;
        }
      }
    }
  }
}

TEST_F(LossScaleGpuTest, OneElementIsFoundWhereverItIs) {
  Values values = Values::Random(Precision::kFloat16, 3, 21, 24, 1);
  for (int64_t i = 0; i < 63; ++i) {
    const float was = std::exchange(values.at(i / 21, i % 21), i % 2 == 0 ? kInfinity : kNan);
    EXPECT_EQ(CountOf(values), 1u) << i;
    values.at(i / 21, i % 21) = was;
  }
  EXPECT_EQ(CountOf(values), 0u);
  values.at(2, 20) = 65504;  // The largest is finite.
  EXPECT_EQ(CountOf(values), 0u);
}

TEST_F(LossScaleGpuTest, UnscalesAsTheCpuBitForBitAndInAGraph) {
  const Stream stream;
  for (const int64_t n : {0, 1, 31, 32, 33, 257, 70001}) {
    for (const float scale : {1.0f, 2.0f, 65536.0f, 16777216.0f}) {
      std::vector<float> expected = RandomFloats(static_cast<uint64_t>(n) + 1, static_cast<size_t>(n));
      if (n > 1) expected[1] = kInfinity;
      DeviceBuffer<float> values = Upload(expected, stream);
      const DeviceBuffer<float> on_device = Upload(std::vector<float>{scale}, stream);
      UnscaleCpu(expected, &scale);
      UnscaleGpu(values.data(), n, on_device.data(), stream);
      ASSERT_EQ(Download(values, stream), expected) << n;
      UnscaleCpu(expected, &scale);
      Graph graph(stream, [&] { UnscaleGpu(values.data(), n, on_device.data(), stream); });
      graph.Replay(stream);
      ASSERT_EQ(Download(values, stream), expected) << n;
    }
  }
}

}  // namespace
}  // namespace sparrow
