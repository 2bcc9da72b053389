// Bytes and operations worked out by hand.

#include "dense/product_cost.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

constexpr ProductShape kShape = {.precision = Precision::kBfloat16, .n = 100, .in = 30, .out = 20};
constexpr double kFlops = 2.0 * 100 * 30 * 20;

ProductShape Of(ProductKind kind) {
  ProductShape shape = kShape;
  shape.kind = kind;
  return shape;
}

TEST(ProductCost, ForwardReadsInputsAndWeightsAndWritesOutputs) {
  ProductShape shape = Of(ProductKind::kForward);
  const OperationCost cost = CostOf(shape, /*whole=*/true);
  EXPECT_EQ(cost.name, "product forward 30 -> 20");
  EXPECT_EQ(cost.bytes, 2 * (3000 + 600 + 2000));
  EXPECT_EQ(cost.flops, kFlops);
  shape.bias = shape.relu = shape.mask = true;
  EXPECT_EQ(CostOf(shape, /*whole=*/true).name, "product forward 30 -> 20, ReLU");
  EXPECT_EQ(CostOf(shape, /*whole=*/true).bytes, 2 * (3000 + 600 + 2000) + 2 * 20 + 2000 / 8);
  EXPECT_EQ(CostOf(shape, /*whole=*/false).bytes, 2 * (3000 + 600 + 2000));
  shape.relu = shape.mask = false;
  shape.gelu = true;
  EXPECT_EQ(CostOf(shape, /*whole=*/true).name, "product forward 30 -> 20, GELU");
  EXPECT_EQ(CostOf(shape, /*whole=*/true).bytes, 2 * (3000 + 600 + 2 * 2000) + 2 * 20);
}

TEST(ProductCost, BackwardReadsWhatItAddsToAndWhatTellsWhereGradientsPass) {
  ProductShape shape = Of(ProductKind::kBackwardInput);
  EXPECT_EQ(CostOf(shape, /*whole=*/true).bytes, 2 * (2000 + 600 + 3000));
  EXPECT_EQ(CostOf(shape, /*whole=*/true).flops, kFlops);
  shape.add = true;
  EXPECT_EQ(CostOf(shape, /*whole=*/false).bytes, 2 * (2000 + 600 + 2 * 3000));
  shape.add = false;
  shape.relu = shape.bias = true;
  EXPECT_EQ(CostOf(shape, /*whole=*/true).bytes, 2 * (2000 + 600 + 2 * 3000) + 4 * 30);
  EXPECT_EQ(CostOf(shape, /*whole=*/false).bytes, 2 * (2000 + 600 + 3000));
  shape.relu = false;
  shape.mask = true;
  EXPECT_EQ(CostOf(shape, /*whole=*/true).bytes, 2 * (2000 + 600 + 3000) + 3000 / 8 + 4 * 30);
  shape.mask = shape.bias = false;
  shape.gelu = true;
  EXPECT_EQ(CostOf(shape, /*whole=*/true).bytes, 2 * (2000 + 600 + 2 * 3000));
}

TEST(ProductCost, GradientsOfWeightsAreFloats) {
  ProductShape shape = Of(ProductKind::kBackwardWeights);
  EXPECT_EQ(CostOf(shape, /*whole=*/true).bytes, 2 * (2000 + 3000) + 4 * 600);
  shape.bias = true;
  EXPECT_EQ(CostOf(shape, /*whole=*/true).bytes, 2 * (2000 + 3000) + 4 * 600 + 4 * 20);
  shape.precision = Precision::kTf32;
  EXPECT_EQ(CostOf(shape, /*whole=*/false).bytes, 4 * (2000 + 3000) + 4 * 600);
  shape.add = true;
  EXPECT_EQ(CostOf(shape, /*whole=*/false).bytes, 4 * (2000 + 3000) + 8 * 600);
}

}  // namespace
}  // namespace sparrow
