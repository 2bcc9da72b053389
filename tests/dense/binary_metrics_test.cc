#include "dense/binary_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/dense/double_reference.h"

namespace sparrow {
namespace {

using testing::RandomFloats;

// By definition: over all pairs of a positive and a negative.
double PairwiseAuc(const std::vector<float>& logits, const std::vector<float>& labels) {
  double wins = 0, pairs = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (labels[i] != 1) continue;
    for (size_t j = 0; j < logits.size(); ++j) {
      if (labels[j] != 0) continue;
      pairs += 1;
      wins += logits[i] > logits[j] ? 1 : logits[i] == logits[j] ? 0.5 : 0;
    }
  }
  return wins / pairs;
}

TEST(BinaryMetrics, AucEqualsThePairwiseDefinitionWithAndWithoutTies) {
  for (size_t n : {2, 31, 33, 257, 1000}) {
    for (int levels : {2, 7, 1 << 20}) {  // Of scores: few make many ties.
      std::vector<float> logits = RandomFloats(n * 31 + levels, n);
      std::vector<float> labels = RandomFloats(n * 37 + levels, n);
      for (float& z : logits) z = std::round(z * levels) / 3;  // Makes -0 and 0 too.
      for (float& y : labels) y = y > 0.3f;
      labels[0] = 0, labels[1] = 1;
      const BinaryMetrics metrics = ComputeBinaryMetrics(logits, labels);
      ASSERT_TRUE(metrics.auc.has_value());
      EXPECT_NEAR(*metrics.auc, PairwiseAuc(logits, labels), 1e-12) << n << " rows, " << levels << " levels";
      EXPECT_EQ(metrics.auc_reason, "");
    }
  }
}

TEST(BinaryMetrics, TiesCountAHalf) {
  EXPECT_EQ(ComputeBinaryMetrics(std::vector<float>{1, 1, 1}, std::vector<float>{0, 1, 0}).auc, 0.5);
  EXPECT_EQ(ComputeBinaryMetrics(std::vector<float>{-0.0f, 0.0f}, std::vector<float>{1, 0}).auc, 0.5);
  EXPECT_EQ(ComputeBinaryMetrics(std::vector<float>{-1, 2}, std::vector<float>{0, 1}).auc, 1.0);
  EXPECT_EQ(ComputeBinaryMetrics(std::vector<float>{-1, 2}, std::vector<float>{1, 0}).auc, 0.0);
}

TEST(BinaryMetrics, LoglossAndCalibrationEqualTheDefinition) {
  const std::vector<float> logits = {-2, 0.5, 3, -1};
  const std::vector<float> labels = {0, 1, 1, 1};
  double loss = 0, predictions = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = 1 / (1 + std::exp(-static_cast<double>(logits[i])));
    loss -= labels[i] == 1 ? std::log(p) : std::log(1 - p);
    predictions += p;
  }
  const BinaryMetrics metrics = ComputeBinaryMetrics(logits, labels);
  EXPECT_EQ(metrics.rows, 4u);
  EXPECT_NEAR(metrics.logloss, loss / 4, 1e-12);
  EXPECT_NEAR(metrics.calibration, predictions / 3, 1e-12);
}

TEST(BinaryMetrics, OneClassHasNoAucButALogloss) {
  const BinaryMetrics zeros = ComputeBinaryMetrics(std::vector<float>{1, 2}, std::vector<float>{0, 0});
  EXPECT_FALSE(zeros.auc.has_value());
  EXPECT_EQ(zeros.auc_reason, "undefined: one class");
  EXPECT_NEAR(zeros.logloss, (std::log1p(std::exp(1.0)) + std::log1p(std::exp(2.0))) / 2, 1e-12);
  EXPECT_EQ(zeros.calibration, 0);
  const BinaryMetrics ones = ComputeBinaryMetrics(std::vector<float>{1}, std::vector<float>{1});
  EXPECT_EQ(ones.auc_reason, "undefined: one class");
  EXPECT_GT(ones.calibration, 0);
}

TEST(BinaryMetrics, NoRowsHaveNoAuc) {
  const BinaryMetrics metrics = ComputeBinaryMetrics({}, {});
  EXPECT_FALSE(metrics.auc.has_value());
  EXPECT_EQ(metrics.auc_reason, "undefined: no rows");
  EXPECT_EQ(metrics.logloss, 0);
}

TEST(BinaryMetrics, NanIsReportedAndInfinityIsAScore) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const BinaryMetrics bad = ComputeBinaryMetrics(std::vector<float>{nan, 2}, std::vector<float>{0, 1});
  EXPECT_FALSE(bad.auc.has_value());
  EXPECT_EQ(bad.auc_reason, "undefined: a prediction is not a number");
  EXPECT_TRUE(std::isnan(bad.logloss));
  const BinaryMetrics sure = ComputeBinaryMetrics(std::vector<float>{-inf, inf}, std::vector<float>{0, 1});
  EXPECT_EQ(sure.auc, 1.0);
  EXPECT_EQ(sure.logloss, 0);
}

}  // namespace
}  // namespace sparrow
