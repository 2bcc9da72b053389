// The twins of embedding/bag.h: the CUDA half against the CPU half on random, non-zero data.

#include "embedding/bag_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/random.h"
#include "embedding/bag.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

// fp32, of the bag's sum of absolute values: both sides add in the same order and differ by fused multiply-add alone,
// an ulp of the partial sum at each of at most 300 look-ups.
constexpr double kTolerance = 1e-6;

struct Case {
  std::vector<uint32_t> offsets;
  std::vector<uint32_t> index;
  std::vector<float> weights;
  std::vector<float> rows;
};

// Bags of 0 to 6 look-ups (one of 300), ids skewed so that they repeat.
Case MakeCase(int64_t bags, uint32_t unique, uint32_t dim, bool weighted, uint64_t seed) {
  Case c;
  c.offsets.push_back(0);
  uint64_t n = 0;
  for (int64_t bag = 0; bag < bags; ++bag) {
    const uint64_t length = bag == 7 ? 300 : RandomBits(seed, n++) % 7;
    for (uint64_t i = 0; i < length; ++i) {
      const double u = RandomUniform(seed, n++);
      c.index.push_back(static_cast<uint32_t>(u * u * unique));
      if (weighted) c.weights.push_back(static_cast<float>(0.25 + RandomUniform(seed, n++)));
    }
    c.offsets.push_back(static_cast<uint32_t>(c.index.size()));
  }
  c.rows.resize(size_t{unique} * dim);
  for (size_t i = 0; i < c.rows.size(); ++i) c.rows[i] = static_cast<float>(RandomNormal(seed + 1, i));
  return c;
}

class BagGpu : public OnGpu<::testing::TestWithParam<std::tuple<int, int, bool, bool>>> {};

TEST_P(BagGpu, ForwardEqualsTheCpuHalfAndWritesNothingElse) {
  const auto [bags, dim, weighted, mean] = GetParam();
  const uint32_t unique = 1000;
  const uint64_t seed = 17 * bags + dim;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const Case c = MakeCase(bags, unique, dim, weighted, seed);
  const uint32_t column = dim;  // Aligned exactly when dim is.
  const uint32_t stride = 3 * dim;
  const float untouched = -123.0f;

  const Bags cpu_bags{c.offsets, c.index, c.weights, mean ? Pooling::kMean : Pooling::kSum};
  ASSERT_TRUE(CheckBags(cpu_bags, unique).ok());
  std::vector<float> expected(static_cast<size_t>(bags) * stride, untouched);
  BagForwardCpu(cpu_bags, c.rows, dim, expected, stride, column);

  std::vector<float> magnitudes = c.rows;
  for (float& value : magnitudes) value = std::abs(value);
  std::vector<float> absolute(expected.size(), 0.0f);
  BagForwardCpu(cpu_bags, magnitudes, dim, absolute, stride, column);

  const Stream stream;
  const auto offsets = Upload(c.offsets, stream);
  const auto index = Upload(c.index, stream);
  const auto weights = Upload(c.weights, stream);
  const auto rows = Upload(c.rows, stream);
  std::vector<float> actual(expected.size(), untouched);
  auto output = Upload(actual, stream);
  const DeviceBags device_bags{offsets.data(), index.data(), weighted ? weights.data() : nullptr, bags, mean};
  BagForwardGpu(device_bags, rows.data(), dim, output.data(), stride, column, stream);
  output.CopyTo(actual, stream);
  std::vector<float> again(actual.size(), std::numeric_limits<float>::quiet_NaN());
  BagForwardGpu(device_bags, rows.data(), dim, output.data(), stride, column, stream);
  output.CopyTo(again, stream);
  stream.Synchronize();

  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], kTolerance * absolute[i]) << "bag " << i / stride << ", column " << i % stride;
  }
  EXPECT_EQ(actual, again) << "two runs must agree bit for bit";
}

// Dimensions wider than a group's 32 vectors, with fewer bags.
INSTANTIATE_TEST_SUITE_P(Wide, BagGpu,
                         testing::Combine(testing::Values(33, 257), testing::Values(128, 1024, 1028, 4096),
                                          testing::Bool(), testing::Bool()));

INSTANTIATE_TEST_SUITE_P(All, BagGpu,
                         testing::Combine(testing::Values(0, 1, 31, 32, 33, 257, 70001),
                                          testing::Values(1, 7, 8, 16, 129), testing::Bool(), testing::Bool()));

}  // namespace
}  // namespace sparrow
