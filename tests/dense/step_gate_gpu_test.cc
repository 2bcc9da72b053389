#include "dense/step_gate_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/gpu.h"

namespace sparrow {
namespace {

constexpr double kScale = 0.125;

TEST(StepGate, AnythingThatIsNotFiniteShutsIt) {
  const auto scale_of = [](double loss, const uint64_t* not_finite) {
    double scale = kScale;
    GateStepCpu(&loss, not_finite, &scale);
    return scale;
  };
  const uint64_t none = 0, some = 3;
  EXPECT_EQ(scale_of(1e300, nullptr), kScale);
  EXPECT_EQ(scale_of(0, &none), kScale);
  EXPECT_TRUE(std::isnan(scale_of(1, &some)));
  for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(scale_of(bad, nullptr)));
    EXPECT_TRUE(std::isnan(scale_of(bad, &none)));
  }
}

using StepGateGpuTest = OnGpu<>;

TEST_F(StepGateGpuTest, EqualsTheCpus) {
  const Stream stream;
  for (const double loss :
       {0.0, 0.7, -1e300, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
      for (const bool counted : {true, false}) {
        double expected = kScale;
        GateStepCpu(&loss, counted ? &count : nullptr, &expected);
        const DeviceBuffer<double> device_loss = Upload(std::vector<double>{loss}, stream);
        const DeviceBuffer<uint64_t> device_count = Upload(std::vector<uint64_t>{count}, stream);
        DeviceBuffer<double> scale = Upload(std::vector<double>{kScale}, stream);
        GateStepGpu(device_loss.data(), counted ? device_count.data() : nullptr, scale.data(), stream);
        const double actual = Download(scale, stream)[0];
        EXPECT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected)))
            << loss << ", " << count << ": " << actual << " against " << expected;
      }
    }
  }
}

}  // namespace
}  // namespace sparrow
