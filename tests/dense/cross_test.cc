#include "dense/cross.h"

#include <gtest/gtest.h>

#include "tests/dense/double_reference.h"

namespace sparrow {
namespace {

using testing::Derivative;
using testing::Near;
using testing::RandomFloats;
using testing::ToDouble;
using testing::Vector;

constexpr uint64_t kSeed = 31;
constexpr double kTolerance = 5e-5;  // Two products in a row of at most 40 terms each, summed over at most 257 rows.

struct Case {
  int64_t n, in, rank;
};

class CrossShapes : public ::testing::TestWithParam<Case> {};

TEST_P(CrossShapes, ValuesAndGradientsEqualDoubleReference) {
  const auto [n, in, rank] = GetParam();
  const std::vector<float> x0f = RandomFloats(kSeed, n * in), xf = RandomFloats(kSeed + 1, n * in);
  const std::vector<float> vf = RandomFloats(kSeed + 2, rank * in), wf = RandomFloats(kSeed + 3, in * rank);
  const std::vector<float> bf = RandomFloats(kSeed + 4, in), cf = RandomFloats(kSeed + 5, n * in);
  Vector x0 = ToDouble(x0f), x = ToDouble(xf), v = ToDouble(vf), w = ToDouble(wf), b = ToDouble(bf);
  const auto reference = [&, in = in](int64_t row) {
    return testing::Cross(Vector(x0.begin() + row * in, x0.begin() + (row + 1) * in),
                          Vector(x.begin() + row * in, x.begin() + (row + 1) * in), v, w, b);
  };
  const auto objective = [&, n = n, in = in] {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Vector y = reference(i);
      for (int64_t j = 0; j < in; ++j) sum += cf[i * in + j] * y[j];
    }
    return sum;
  };

  const CrossWeights weights{.v = AsMatrix(std::span(vf), rank, in), .w = AsMatrix(std::span(wf), in, rank), .b = bf};
  std::vector<float> projected(n * rank), factor(n * in), y(n * in);
  const CrossActivations activations{.projected = AsMatrix(std::span(projected), n, rank),
                                     .factor = AsMatrix(std::span(factor), n, in)};
  CrossForwardCpu(weights, AsMatrix(std::span(x0f), n, in), AsMatrix(std::span(xf), n, in), activations,
                  AsMatrix(std::span(y), n, in));
  for (int64_t i = 0; i < n; ++i) {
    const Vector expected = reference(i);
    for (int64_t j = 0; j < in; ++j) ASSERT_TRUE(Near(y[i * in + j], expected[j], kTolerance)) << i << " " << j;
  }

  std::vector<float> gradients = cf, x0_gradients(n * in), projected_gradients(n * rank), factor_gradients(n * in);
  std::vector<float> v_gradients(v.size(), 5.0f), w_gradients(w.size(), 5.0f), b_gradients(b.size(), 5.0f);
  const CrossGradients intermediate{.projected = AsMatrix(std::span(projected_gradients), n, rank),
                                    .factor = AsMatrix(std::span(factor_gradients), n, in)};
  CrossBackwardInputCpu(weights, AsMatrix(std::span(x0f), n, in), activations, AsMatrix(std::span(gradients), n, in),
                        AsMatrix(std::span(x0_gradients), n, in), intermediate, b_gradients);
  CrossBackwardWeightsCpu(AsMatrix(std::span(xf), n, in), activations.projected, intermediate,
                          AsMatrix(std::span(v_gradients), rank, in), AsMatrix(std::span(w_gradients), in, rank));
  const auto check = [&](Vector* values, const std::vector<float>& computed, const char* what) {
    for (size_t i = 0; i < values->size(); i += std::max<size_t>(1, values->size() / 15)) {
      ASSERT_TRUE(Near(computed[i], Derivative(objective, &(*values)[i]), kTolerance)) << what << " " << i;
    }
  };
  check(&x, gradients, "x");
  check(&x0, x0_gradients, "x0");
  check(&v, v_gradients, "v");
  check(&w, w_gradients, "w");
  check(&b, b_gradients, "b");
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossShapes,
                         ::testing::Values(Case{0, 5, 2}, Case{1, 1, 1}, Case{2, 9, 3}, Case{31, 17, 8},
                                           Case{33, 40, 33}, Case{257, 12, 5}));

}  // namespace
}  // namespace sparrow
