// The twins of embedding/bag.h: the CUDA half against the CPU half on random, non-zero data. Both add in the same order
// and neither fuses multiply and add, so they agree bit for bit.

#include "embedding/bag_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/random.h"
#include "embedding/bag.h"
#include "embedding/row_type.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

constexpr uint32_t kSlots = 1000;
constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16};

// One feature's bags.
struct Feature {
  std::vector<uint32_t> offsets = {0};
  std::vector<uint32_t> index;
  std::vector<float> weights;
};

// Bags of 0 to 6 look-ups (one of 300), ids skewed so that they repeat.
Feature MakeFeature(int64_t samples, bool weighted, uint64_t seed) {
  Feature f;
  uint64_t n = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const uint64_t length = i == 7 ? 300 : RandomBits(seed, n++) % 7;
    for (uint64_t k = 0; k < length; ++k) {
      const double u = RandomUniform(seed, n++);
      f.index.push_back(static_cast<uint32_t>(u * u * kSlots));
      if (weighted) f.weights.push_back(static_cast<float>(0.25 + RandomUniform(seed, n++)));
    }
    f.offsets.push_back(static_cast<uint32_t>(f.index.size()));
  }
  return f;
}

// The bytes of `values` in a type, to the nearest.
std::vector<char> Encode(ElementType type, const std::vector<float>& values) {
  std::vector<char> bytes(values.size() * ElementBytes(type));
  uint64_t saturated = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == ElementType::kFloat32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t bits = type == ElementType::kBfloat16 ? ToBfloat16(values[i], &saturated)  //
                                                           : ToFloat16(values[i], &saturated);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  CHECK_EQ(saturated, 0u);
  return bytes;
}

// samples, dim, weighted, whether every other feature is kMean.
class BagGpu : public OnGpu<::testing::TestWithParam<std::tuple<int, int, bool, bool>>> {};

TEST_P(BagGpu, ForwardEqualsTheCpuHalfAndWritesNothingElse) {
  const auto [samples, dim, weighted, mean] = GetParam();
  const uint64_t seed = 17 * samples + dim;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const uint32_t features = samples > 1000 ? 2 : 3;
  const float untouched = -123.0f;
  const uint32_t width = dim;
  const bool aligned = !weighted || samples % 2 == 0;
  const uint32_t stride = (features + 1) * width + (aligned ? 4 : 1);
  // Not in order; aligned as dim is, or not.
  std::vector<uint32_t> columns;
  for (uint32_t f = 0; f < features; ++f) columns.push_back((features - f) * width + (aligned ? 0 : 1));
  const std::vector<uint8_t> means = {0, 1, 0};

  // Rows in slots that are longer than they, as records are.
  const uint64_t slot_bytes = (uint64_t{4} * width + 20 + 15) / 16 * 16;
  std::vector<float> rows(size_t{kSlots} * width);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(RandomNormal(seed + 1, i));
  std::vector<char> slots(kSlots * slot_bytes, '\xff');
  for (uint64_t s = 0; s < kSlots; ++s) {
    std::memcpy(slots.data() + s * slot_bytes, rows.data() + s * width, uint64_t{4} * width);
  }

  std::vector<float> pooled(static_cast<size_t>(samples) * stride, untouched);
  Feature all;
  for (uint32_t f = 0; f < features; ++f) {
    const Feature feature = MakeFeature(samples, weighted, seed + 10 + f);
    const Bags bags{feature.offsets, feature.index, feature.weights,
                    mean && means[f] != 0 ? Pooling::kMean : Pooling::kSum};
    ASSERT_TRUE(CheckBags(bags, kSlots).ok());
    BagForwardCpu(bags, rows, width, pooled, stride, columns[f]);
    const auto first = static_cast<uint32_t>(all.index.size());
    for (int i = 1; i <= samples; ++i) all.offsets.push_back(first + feature.offsets[i]);
    all.index.insert(all.index.end(), feature.index.begin(), feature.index.end());
    all.weights.insert(all.weights.end(), feature.weights.begin(), feature.weights.end());
  }
  for (float& value : pooled) value += 0.0f;  // A row's -0 is copied by the CPU half, and added to 0 by the other.

  const Stream stream;
  const auto d_offsets = Upload(all.offsets, stream);
  const auto d_index = Upload(all.index, stream);
  const auto d_weights = Upload(all.weights, stream);
  const auto d_means = Upload(means, stream);
  const auto d_slots = Upload(slots, stream);
  const auto d_columns = Upload(columns, stream);
  const DeviceBags bags{.offsets = d_offsets.data(),
                        .index = d_index.data(),
                        .weights = weighted ? d_weights.data() : nullptr,
                        .mean = mean ? d_means.data() : nullptr,
                        .features = features,
                        .samples = static_cast<uint32_t>(samples),
                        .lookups = weighted ? 0 : static_cast<uint32_t>(all.index.size())};
  for (const ElementType type : kTypes) {
    SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type));
    const std::vector<char> expected = Encode(type, pooled);
    const std::vector<char> before = Encode(type, std::vector<float>(pooled.size(), untouched));
    auto output = Upload(before, stream);
    const DevicePooled to{output.data(), type, d_columns.data(), stride, aligned && width % 4 == 0};
    EXPECT_EQ(to.InFours(width), aligned && width % 4 == 0);
    BagsForwardGpu(bags, {d_slots.data(), slot_bytes, width}, to, stream);
    const std::vector<char> actual = Download(output, stream);
    const auto differs = std::mismatch(actual.begin(), actual.end(), expected.begin()).first - actual.begin();
    const auto row_bytes = static_cast<int64_t>(stride * ElementBytes(type));
    ASSERT_EQ(differs, static_cast<int64_t>(expected.size()))
        << "sample " << differs / row_bytes << ", byte " << differs % row_bytes;
    BagsForwardGpu(bags, {d_slots.data(), slot_bytes, width}, to, stream);
    EXPECT_TRUE(actual == Download(output, stream)) << "two runs must agree bit for bit";
  }
}

// Dimensions wider than a group's 32 vectors, with fewer bags.
INSTANTIATE_TEST_SUITE_P(Wide, BagGpu,
                         testing::Combine(testing::Values(33, 257), testing::Values(128, 1024, 1028, 4096),
                                          testing::Bool(), testing::Bool()));

INSTANTIATE_TEST_SUITE_P(All, BagGpu,
                         testing::Combine(testing::Values(0, 1, 31, 32, 33, 257),
                                          testing::Values(1, 7, 8, 16, 30, 64, 129), testing::Bool(), testing::Bool()));

INSTANTIATE_TEST_SUITE_P(Large, BagGpu,
                         testing::Combine(testing::Values(70001), testing::Values(1, 7, 8, 16, 64, 129),
                                          testing::Bool(), testing::Values(true)));

class BagsGpu : public OnGpu<> {};

TEST_F(BagsGpu, WhatATypeDoesNotHoldBecomesAnInfinity) {
  const Stream stream;
  const auto offsets = Upload(std::vector<uint32_t>{0, 2}, stream);
  const auto index = Upload(std::vector<uint32_t>{0, 0}, stream);
  const auto columns = Upload(std::vector<uint32_t>{0}, stream);
  const auto rows = Upload(std::vector<float>{40000, -40000, 1, 1.7e38f}, stream);
  const auto bags = DeviceBags{.offsets = offsets.data(), .index = index.data(), .features = 1, .samples = 1};
  auto output = Upload(std::vector<uint16_t>(4), stream);
  const auto pool = [&](ElementType type) {
    BagsForwardGpu(bags, {reinterpret_cast<const char*>(rows.data()), 16, 4},
                   {output.data(), type, columns.data(), 4, true}, stream);
    return Download(output, stream);
  };
  const std::vector<uint16_t> halves = pool(ElementType::kFloat16);
  EXPECT_EQ(FromFloat16(halves[0]), std::numeric_limits<float>::infinity());
  EXPECT_EQ(FromFloat16(halves[1]), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(FromFloat16(halves[2]), 2);
  const std::vector<uint16_t> bfloats = pool(ElementType::kBfloat16);
  EXPECT_EQ(FromBfloat16(bfloats[0]), 79872);  // 80,000 in 8 bits.
  EXPECT_EQ(FromBfloat16(bfloats[3]), std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace sparrow
