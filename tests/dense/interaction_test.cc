#include "dense/interaction.h"

#include <gtest/gtest.h>

#include "tests/dense/double_reference.h"

namespace sparrow {
namespace {

using testing::Derivative;
using testing::Near;
using testing::RandomFloats;
using testing::ToDouble;
using testing::Vector;

constexpr uint64_t kSeed = 7177;
constexpr double kTolerance = 2e-5;  // Dots of at most 129 products of numbers below 1.1, and sums of 40 of them.

struct Case {
  int64_t n, features, dim;
  bool bottom;
};

class InteractionShapes : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    shape_ = {.dim = c.dim, .bottom_cols = c.bottom ? c.dim : 0, .features = c.features};
    bottom_ = RandomFloats(kSeed, c.n * shape_.bottom_cols);
    sparse_ = RandomFloats(kSeed + 1, c.n * c.features * c.dim);
    bottom_reference_ = ToDouble(bottom_);
    sparse_reference_ = ToDouble(sparse_);
  }

  Vector Reference(int64_t row) const {
    std::vector<Vector> vectors;
    if (shape_.bottom_cols > 0) {
      const auto from = bottom_reference_.begin() + row * shape_.dim;
      vectors.emplace_back(from, from + shape_.dim);
    }
    for (int64_t f = 0; f < shape_.features; ++f) {
      const auto from = sparse_reference_.begin() + (row * shape_.features + f) * shape_.dim;
      vectors.emplace_back(from, from + shape_.dim);
    }
    return testing::Interaction(vectors, shape_.bottom_cols > 0);
  }

  ConstMatrix bottom() const { return AsMatrix(std::span(bottom_), GetParam().n, shape_.bottom_cols); }
  ConstMatrix sparse() const { return AsMatrix(std::span(sparse_), GetParam().n, shape_.features * shape_.dim); }

  InteractionShape shape_;
  std::vector<float> bottom_, sparse_;
  Vector bottom_reference_, sparse_reference_;
};

TEST_P(InteractionShapes, ForwardEqualsDoubleReference) {
  const int64_t n = GetParam().n;
  std::vector<float> out(n * shape_.outputs(), 9.0f);
  InteractionForwardCpu(shape_, bottom(), sparse(), AsMatrix(std::span(out), n, shape_.outputs()));
  for (int64_t i = 0; i < n; ++i) {
    const Vector expected = Reference(i);
    ASSERT_EQ(static_cast<int64_t>(expected.size()), shape_.outputs());
    for (size_t j = 0; j < expected.size(); ++j) {
      ASSERT_TRUE(Near(out[i * expected.size() + j], expected[j], kTolerance)) << "row " << i << " output " << j;
    }
  }
}

TEST_P(InteractionShapes, BackwardEqualsFiniteDifferences) {
  const int64_t n = GetParam().n;
  const std::vector<float> c = RandomFloats(kSeed + 2, n * shape_.outputs());
  std::vector<float> bottom_gradients(bottom_.size(), 9.0f), sparse_gradients(sparse_.size(), 9.0f);
  InteractionBackwardCpu(shape_, bottom(), sparse(), AsMatrix(std::span(c), n, shape_.outputs()),
                         AsMatrix(std::span(bottom_gradients), n, shape_.bottom_cols),
                         AsMatrix(std::span(sparse_gradients), n, shape_.features * shape_.dim));
  for (int64_t row = 0; row < n; row += std::max<int64_t>(1, n / 5)) {
    const auto objective = [&] {
      const Vector out = Reference(row);
      double sum = 0;
      for (size_t j = 0; j < out.size(); ++j) sum += c[row * out.size() + j] * out[j];
      return sum;
    };
    const auto check = [&](Vector* values, const std::vector<float>& computed, int64_t cols, const char* what) {
      for (int64_t i = row * cols; i < (row + 1) * cols; i += std::max<int64_t>(1, cols / 40)) {
        ASSERT_TRUE(Near(computed[i], Derivative(objective, &(*values)[i]), kTolerance)) << what << " " << i;
      }
    };
    check(&bottom_reference_, bottom_gradients, shape_.bottom_cols, "bottom");
    check(&sparse_reference_, sparse_gradients, shape_.features * shape_.dim, "sparse");
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, InteractionShapes,
                         ::testing::Values(Case{0, 26, 16, true}, Case{1, 1, 1, true}, Case{2, 2, 7, false},
                                           Case{31, 3, 8, true}, Case{33, 26, 16, true}, Case{257, 4, 5, false},
                                           Case{2, 40, 129, true}, Case{3, 16, 16, false}, Case{3, 1, 4, false},
                                           Case{5, 0, 6, true}));

TEST(Interaction, PairsComeInTheOrderOfTheLowerTriangle) {
  // Vectors of one number, 1 to 4, the first from the bottom.
  const InteractionShape shape{.dim = 1, .bottom_cols = 1, .features = 3};
  const std::vector<float> bottom = {1}, sparse = {2, 3, 5};
  std::vector<float> out(shape.outputs());
  InteractionForwardCpu(shape, AsMatrix(std::span(bottom), 1, 1), AsMatrix(std::span(sparse), 1, 3),
                        AsMatrix(std::span(out), 1, shape.outputs()));
  EXPECT_EQ(out, (std::vector<float>{1, 2 * 1, 3 * 1, 3 * 2, 5 * 1, 5 * 2, 5 * 3}));
}

}  // namespace
}  // namespace sparrow
