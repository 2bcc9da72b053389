// SparseUpdateCpu, with numbers worked out by hand. Its parts have tests of their own: bag_test, optimizer_test.

#include "embedding/sparse_update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace sparrow {
namespace {

TEST(SparseUpdate, EqualRowsOfTwoFeaturesAreSummedAndUpdatedOnce) {
  const TableSpec spec{.name = "t",
                       .dim = 2,
                       .optimizer = {.kind = SparseOptimizerKind::kMomentum, .learning_rate = 0.5, .momentum = 0.25},
                       .initializer = {}};
  const RowLayout layout = spec.Layout();
  std::vector<char> records(3 * layout.slot_bytes());
  const auto record = [&](int slot) { return records.data() + slot * layout.slot_bytes(); };
  for (int slot = 0; slot < 3; ++slot) {
    for (int i = 0; i < 2; ++i) {
      layout.Weights(record(slot))[i] = 1;
      layout.State(record(slot))[i] = 8;
    }
  }
  layout.SetMetadata({.updates = 4, .frequency = 6, .last_step = 2}, record(2));

  // Two samples. Feature 0, at column 3: bags {2}, {2, 0}. Feature 1, at column 1: bags {}, {2} of weight 3.
  const std::vector<uint32_t> offsets0 = {0, 1, 3}, index0 = {2, 2, 0};
  const std::vector<uint32_t> offsets1 = {0, 0, 1}, index1 = {2};
  const std::vector<float> weights1 = {3};
  const std::vector<Bags> features = {{.offsets = offsets0, .index = index0, .weights = {}, .pooling = Pooling::kMean},
                                      {.offsets = offsets1, .index = index1, .weights = weights1}};
  const std::vector<uint32_t> columns = {3, 1};
  const std::vector<float> gradients = {100, 20, 30, 1, 2,  //
                                        100, 5,  7,  4, 6};
  SparseUpdateCpu(spec, features, columns, gradients, 5, {.gradient_scale = 2, .learning_rate_factor = 0.5, .step = 9},
                  records);

  // Row 2: {1, 2} + {4, 6} / 2 + 3 * {5, 7} = {18, 26}; m = 0.25 * 8 + 2 * g; w = 1 - 0.25 * m.
  EXPECT_EQ(layout.State(record(2))[0], 38);
  EXPECT_EQ(layout.State(record(2))[1], 54);
  EXPECT_EQ(layout.Weights(record(2))[0], 1 - 9.5f);
  EXPECT_EQ(layout.Weights(record(2))[1], 1 - 13.5f);
  EXPECT_EQ(layout.Metadata(record(2)).updates, 5u);
  EXPECT_EQ(layout.Metadata(record(2)).frequency, 7u);
  EXPECT_EQ(layout.Metadata(record(2)).last_step, 9u);
  // Row 0: {4, 6} / 2.
  EXPECT_EQ(layout.State(record(0))[0], 6);
  EXPECT_EQ(layout.State(record(0))[1], 8);
  EXPECT_EQ(layout.Metadata(record(0)).updates, 1u);
  // Row 1 was not looked up.
  EXPECT_EQ(layout.State(record(1))[0], 8);
  EXPECT_EQ(layout.Weights(record(1))[0], 1);
  EXPECT_EQ(layout.Metadata(record(1)).updates, 0u);
}

TEST(SparseUpdate, ARowWhoseSumIsNotFiniteOrTooLargeIsLeftAndCounted) {
  const TableSpec spec{
      .name = "t", .dim = 2, .optimizer = {.kind = SparseOptimizerKind::kSgd, .learning_rate = 1}, .initializer = {}};
  const RowLayout layout = spec.Layout();
  const float infinity = std::numeric_limits<float>::infinity();
  // Five samples of one look-up each; row 4 is read by none, row 1 by two whose sum is not a number.
  const std::vector<uint32_t> offsets = {0, 1, 2, 3, 4, 5}, index = {0, 1, 1, 2, 3};
  const std::vector<Bags> features = {{.offsets = offsets, .index = index, .weights = {}}};
  const std::vector<uint32_t> columns = {0};
  const std::vector<float> gradients = {1, 2, infinity, 1, -infinity, 1, 1, 1.5e15f, 4, 0.9e15f};

  std::vector<float> sums(10, -5);
  EXPECT_EQ(SumGradientsCpu(features, columns, gradients, 2, 2, sums), 1u);
  EXPECT_TRUE(std::isnan(sums[2]));
  sums[2] = 7;
  EXPECT_EQ(sums, (std::vector<float>{1, 2, 7, 2, 1, 1.5e15f, 4, 0.9e15f, 0, 0}));

  std::vector<char> records(5 * layout.slot_bytes());
  EXPECT_EQ(SparseUpdateCpu(spec, features, columns, gradients, 2, {.step = 9}, records), 2u);
  const std::vector<float> weights = {-1, -2, 0, 0, 0, 0, -4, -0.9e15f, 0, 0};
  const std::vector<uint32_t> updates = {1, 0, 0, 1, 0};
  for (int slot = 0; slot < 5; ++slot) {
    char* record = records.data() + slot * layout.slot_bytes();
    EXPECT_EQ(layout.Weights(record)[0], weights[2 * slot]) << "row " << slot;
    EXPECT_EQ(layout.Weights(record)[1], weights[2 * slot + 1]) << "row " << slot;
    EXPECT_EQ(layout.Metadata(record).updates, updates[slot]) << "row " << slot;
  }
}

}  // namespace
}  // namespace sparrow
