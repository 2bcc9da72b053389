#include "dense/device_layout.h"

#include <gtest/gtest.h>

#include <numeric>

#include "dense/device_matrix.h"

namespace sparrow {
namespace {

std::vector<Parameter> Parameters() {
  return {{.name = "w", .shape = {3, 13}, .offset = 0, .size = 39},
          {.name = "b", .shape = {3}, .offset = 39, .size = 3},
          {.name = "v", .shape = {8, 16}, .offset = 42, .size = 128}};
}

TEST(DeviceLayout, WhatIsSpreadIsCollectedAndTheGapsAreZero) {
  const DeviceLayout layout(Parameters());
  std::vector<float> host(170);
  std::iota(host.begin(), host.end(), 1.0f);
  std::vector<float> device(layout.size(), 9.0f);
  layout.Spread(host, device);
  const DeviceTensor w = layout.at("w");
  double sum = 0;
  for (int64_t i = 0; i < w.rows; ++i) {
    for (int64_t j = 0; j < w.cols; ++j) {
      const float expected = i < 3 && j < 13 ? host[i * 13 + j] : 0.0f;
      ASSERT_EQ(device[w.offset + i * w.cols + j], expected) << i << " " << j;
    }
  }
  for (float value : device) sum += value;
  EXPECT_EQ(sum, 170.0 * 171 / 2);  // Nothing else anywhere.
  std::vector<float> back(host.size());
  layout.Collect(device, back);
  EXPECT_EQ(back, host);
}

TEST(DeviceLayout, TensorsAreAlignedAndPaddedAndDoNotOverlap) {
  const DeviceLayout layout(Parameters());
  int64_t end = 0;
  for (const char* name : {"w", "b", "v"}) {
    const DeviceTensor tensor = layout.at(name);
    EXPECT_EQ(tensor.offset % 64, 0) << name;
    EXPECT_EQ(tensor.cols % kColumnsMultiple, 0) << name;
    EXPECT_GE(tensor.offset, end) << name;
    end = tensor.offset + tensor.rows * tensor.cols;
  }
  EXPECT_LE(end, layout.size());
  EXPECT_EQ(layout.at("w").rows, 8);  // As its outputs' columns.
  EXPECT_EQ(layout.at("b").rows, 1);
}

TEST(DeviceLayout, MatricesAreTheRangesOfWhatIsNoVector) {
  const DeviceLayout layout(Parameters());
  const std::vector<Slice> matrices = layout.Matrices();
  ASSERT_EQ(matrices.size(), 2u);
  for (const size_t m : {0, 1}) {
    const DeviceTensor tensor = layout.at(m == 0 ? "w" : "v");
    EXPECT_EQ(matrices[m].begin, static_cast<uint64_t>(tensor.offset));
    EXPECT_EQ(matrices[m].size(), static_cast<uint64_t>(tensor.rows * tensor.cols));
  }
}

TEST(DeviceLayout, ATransposedMatrixLiesAsProductsWantItAndComesBack) {
  std::vector<Parameter> parameters = Parameters();
  parameters.push_back({.name = "large", .shape = {70, 33}, .offset = 170, .size = 2310});
  const DeviceLayout layout(parameters, {{"w", {.transposed = true}},
                                         {"v", {.rows_multiple = 128}},
                                         {"large", {.transposed = true, .rows_multiple = 64}}});
  std::vector<float> host(2480);
  std::iota(host.begin(), host.end(), 1.0f);
  std::vector<float> device(layout.size(), 9.0f);
  layout.Spread(host, device);
  const DeviceTensor w = layout.at("w");
  EXPECT_EQ(w.rows, 16);
  EXPECT_EQ(w.cols, 8);
  for (int64_t i = 0; i < w.rows; ++i) {
    for (int64_t j = 0; j < w.cols; ++j) {
      const float expected = i < 13 && j < 3 ? host[j * 13 + i] : 0.0f;
      ASSERT_EQ(device[w.offset + i * w.cols + j], expected) << i << " " << j;
    }
  }
  EXPECT_EQ(layout.at("v").rows, 128);
  EXPECT_EQ(layout.at("v").cols, 16);
  EXPECT_EQ(layout.at("large").rows, 64);
  EXPECT_EQ(layout.at("large").cols, 72);
  EXPECT_EQ(device[layout.at("large").offset + 32 * 72 + 69], host[170 + 69 * 33 + 32]);
  std::vector<float> back(host.size());
  layout.Collect(device, back);
  EXPECT_EQ(back, host);
}

}  // namespace
}  // namespace sparrow
