#include "dense/step_totals_gpu.h"

#include <gtest/gtest.h>

#include "tests/support/gpu.h"

namespace sparrow {
namespace {

using StepTotalsGpuTest = OnGpu<>;

TEST_F(StepTotalsGpuTest, EqualTheCpusBitForBitAndKeepTheLoss) {
  const Stream stream;
  for (const uint32_t samples : {0u, 1u, 31u, 32u, 33u, 257u, 70001u, (1u << 24) - 1}) {
    const double loss_value = 0.6931471805599453 * samples + 1e-3;
    std::vector<float> expected(kStepTotals, 9);
    const uint64_t not_finite = samples % 2 == 0 ? 0 : samples;
    StepTotalsCpu(&loss_value, &samples, &not_finite, expected.data());
    const DeviceBuffer<double> loss = Upload(std::vector<double>{loss_value}, stream);
    const DeviceBuffer<uint32_t> count = Upload(std::vector<uint32_t>{samples}, stream);
    const DeviceBuffer<uint64_t> found = Upload(std::vector<uint64_t>{not_finite}, stream);
    DeviceBuffer<float> totals = Upload(std::vector<float>(kStepTotals, 7), stream);
    StepTotalsGpu(loss.data(), count.data(), found.data(), totals.data(), stream);
    const std::vector<float> actual = Download(totals, stream);
    EXPECT_EQ(actual, expected);
    const StepTotals taken = TakeStepTotals(actual.data());
    EXPECT_EQ(taken.samples, samples);
    EXPECT_EQ(taken.overflows, samples % 2);
    EXPECT_NEAR(taken.loss, loss_value, 1e-14 * loss_value);  // Two floats hold 48 bits.
    StepTotalsGpu(loss.data(), count.data(), /*not_finite=*/nullptr, totals.data(), stream);
    EXPECT_EQ(TakeStepTotals(Download(totals, stream).data()).overflows, 0u);
  }
}

}  // namespace
}  // namespace sparrow
