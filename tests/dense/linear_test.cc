#include "dense/linear.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/dense/double_reference.h"

namespace sparrow {
namespace {

using testing::Derivative;
using testing::Near;
using testing::RandomFloats;
using testing::ToDouble;
using testing::Vector;

constexpr uint64_t kSeed = 20240611;
constexpr double kTolerance = 1e-5;  // Sums of at most 257 products of numbers below 1.1 in single precision.

struct Case {
  int64_t n, in, out;
};

class LinearShapes : public ::testing::TestWithParam<Case> {
 protected:
  // Sum over samples and outputs of c * y: its derivatives by x, w and b are what the backward pass computes from
  // gradients c.
  double Objective(bool relu) {
    const auto [n, in, out] = GetParam();
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Vector y = testing::Linear(Vector(x_.begin() + i * in, x_.begin() + (i + 1) * in), w_, b_, relu);
      for (int64_t j = 0; j < out; ++j) sum += c_[i * out + j] * y[j];
    }
    return sum;
  }

  void SetUp() override {
    const auto [n, in, out] = GetParam();
    RecordProperty("seed", std::to_string(kSeed));
    xf_ = RandomFloats(kSeed, n * in);
    wf_ = RandomFloats(kSeed + 1, in * out);
    bf_ = RandomFloats(kSeed + 2, out);
    cf_ = RandomFloats(kSeed + 3, n * out);
    x_ = ToDouble(xf_), w_ = ToDouble(wf_), b_ = ToDouble(bf_), c_ = ToDouble(cf_);
  }

  std::vector<float> xf_, wf_, bf_, cf_;
  Vector x_, w_, b_, c_;
};

TEST_P(LinearShapes, ForwardEqualsDoubleReference) {
  const auto [n, in, out] = GetParam();
  for (Activation activation : {Activation::kIdentity, Activation::kRelu}) {
    // Inside a wider matrix, whose other columns must stay as they are.
    std::vector<float> wide(n * (out + 3), 7.0f);
    const Matrix y = AsMatrix(std::span(wide), n, out + 3).Columns(1, out + 1);
    LinearForwardCpu(AsMatrix(std::span<const float>(xf_), n, in), AsMatrix(std::span<const float>(wf_), out, in), bf_,
                     activation, y);
    for (int64_t i = 0; i < n; ++i) {
      const Vector expected = testing::Linear(Vector(x_.begin() + i * in, x_.begin() + (i + 1) * in), w_, b_,
                                              activation == Activation::kRelu);
      for (int64_t j = 0; j < out; ++j) ASSERT_TRUE(Near(y.row(i)[j], expected[j], kTolerance)) << i << " " << j;
      EXPECT_EQ(wide[i * (out + 3)], 7.0f);
      EXPECT_EQ(wide[i * (out + 3) + out + 1], 7.0f);
    }
  }
}

TEST_P(LinearShapes, BackwardEqualsFiniteDifferences) {
  const auto [n, in, out] = GetParam();
  const ConstMatrix x = AsMatrix(std::span<const float>(xf_), n, in);
  const ConstMatrix w = AsMatrix(std::span<const float>(wf_), out, in);
  std::vector<float> y_values(n * out), x_gradients(n * in, 5.0f), w_gradients(in * out, 5.0f), b_gradients(out, 5.0f);
  const Matrix y = AsMatrix(std::span(y_values), n, out);
  LinearForwardCpu(x, w, bf_, Activation::kRelu, y);
  std::vector<float> gradients = cf_;
  const Matrix c = AsMatrix(std::span(gradients), n, out);
  BiasActivationBackwardCpu(Activation::kRelu, y, c, b_gradients);
  ProductBackwardInputCpu(c, w, Write::kOverwrite, AsMatrix(std::span(x_gradients), n, in));
  ProductBackwardWeightsCpu(c, x, AsMatrix(std::span(w_gradients), out, in));

  const auto objective = [this] { return Objective(/*relu=*/true); };
  // Every element where there are few, a spread of them where there are many.
  const auto check = [&](Vector* values, const std::vector<float>& computed, const char* what) {
    const size_t stride = std::max<size_t>(1, values->size() / 12);
    for (size_t i = 0; i < values->size(); i += stride) {
      ASSERT_TRUE(Near(computed[i], Derivative(objective, &(*values)[i]), 3e-5)) << what << " " << i;
    }
  };
  check(&x_, x_gradients, "x");
  check(&w_, w_gradients, "w");
  check(&b_, b_gradients, "b");
}

TEST_P(LinearShapes, AddingInputGradientsKeepsWhatIsThere) {
  const auto [n, in, out] = GetParam();
  const ConstMatrix w = AsMatrix(std::span<const float>(wf_), out, in);
  const ConstMatrix c = AsMatrix(std::span<const float>(cf_), n, out);
  std::vector<float> once(n * in), added(n * in, 2.0f);
  ProductBackwardInputCpu(c, w, Write::kOverwrite, AsMatrix(std::span(once), n, in));
  ProductBackwardInputCpu(c, w, Write::kAdd, AsMatrix(std::span(added), n, in));
  for (size_t i = 0; i < once.size(); ++i) ASSERT_TRUE(Near(added[i], once[i] + 2.0, kTolerance)) << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearShapes,
                         ::testing::Values(Case{0, 3, 4}, Case{1, 1, 1}, Case{1, 13, 5}, Case{2, 7, 3},
                                           Case{31, 13, 17}, Case{33, 16, 1}, Case{257, 5, 9}, Case{3, 257, 33}));

TEST(Linear, WeightGradientsOfNoRowsAreZero) {
  std::vector<float> w_gradients(12, 3.0f);
  ProductBackwardWeightsCpu(Matrix(nullptr, 0, 3), Matrix(nullptr, 0, 4), AsMatrix(std::span(w_gradients), 3, 4));
  EXPECT_EQ(w_gradients, std::vector<float>(12, 0.0f));
}

TEST(Activation, ReluKeepsNanAndHasNoSlopeAtZero) {
  std::vector<float> y = {std::numeric_limits<float>::quiet_NaN(), -1.0f, 0.0f, 2.0f};
  const std::vector<float> bias(4, 0.0f);
  BiasActivationForwardCpu(Activation::kRelu, bias, AsMatrix(std::span(y), 1, 4));
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[3], 2.0f);
  std::vector<float> gradients = {1, 1, 1, 1}, sums(4);
  BiasActivationBackwardCpu(Activation::kRelu, AsMatrix(std::span<const float>(y), 1, 4),
                            AsMatrix(std::span(gradients), 1, 4), sums);
  EXPECT_EQ(gradients[1], 0.0f);
  EXPECT_EQ(gradients[2], 0.0f);
  EXPECT_EQ(gradients[3], 1.0f);
}

TEST(Activation, SigmoidDoesNotOverflow) {
  EXPECT_EQ(Sigmoid(0), 0.5);
  EXPECT_EQ(Sigmoid(1000), 1.0);
  EXPECT_EQ(Sigmoid(-1000), 0.0);
  EXPECT_NEAR(Sigmoid(-2), 0.11920292202211755, 1e-15);
}

}  // namespace
}  // namespace sparrow
