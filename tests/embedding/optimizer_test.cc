// The row arithmetic against formulas written here from their papers, in double, and against numbers worked out by
// hand. Twins and tiers share embedding/optimizer.h, so only this can find a wrong term there.

#include "embedding/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "embedding/apply.h"
#include "embedding/row_codec.h"
#include "embedding/row_layout.h"
#include "tests/support/table_specs.h"

namespace sparrow {
namespace {

using Doubles = std::vector<double>;

// Floats rounded at each of a few operations, and a difference that may cancel.
constexpr double kRelative = 3e-6;

struct Row {
  Doubles w, s;
};

// One update in double. s is laid out as StateFloats says.
Row Reference(const SparseOptimizer& o, double lr, double scale, double t, const Doubles& gradient, Row row) {
  const size_t dim = row.w.size();
  Doubles g = gradient;
  double mean_square = 0;
  for (double& x : g) {
    x *= scale;
    mean_square += x * x / static_cast<double>(dim);
  }
  for (size_t i = 0; i < dim; ++i) {
    double& w = row.w[i];
    Doubles& s = row.s;
    switch (o.kind) {
      case SparseOptimizerKind::kSgd:
        w = w - lr * (g[i] + o.weight_decay * w);
        break;
      case SparseOptimizerKind::kMomentum:
        s[i] = o.momentum * s[i] + g[i];
        w = w - lr * s[i];
        break;
      case SparseOptimizerKind::kAdagrad:
        s[i] = s[i] + g[i] * g[i];
        w = w - lr * g[i] / (std::sqrt(s[i]) + o.eps);
        break;
      case SparseOptimizerKind::kRowwiseAdagrad:
        if (i == 0) s[0] += mean_square;
        w = w - lr * g[i] / (std::sqrt(s[0]) + o.eps);
        break;
      case SparseOptimizerKind::kAdam: {
        double& m = s[i];
        double& v = s[dim + i];
        m = o.beta1 * m + (1 - o.beta1) * g[i];
        v = o.beta2 * v + (1 - o.beta2) * g[i] * g[i];
        w = w - lr * (m / (1 - std::pow(o.beta1, t))) / (std::sqrt(v / (1 - std::pow(o.beta2, t))) + o.eps);
        break;
      }
      case SparseOptimizerKind::kRowwiseAdam: {
        double& m = s[i];
        double& v = s[dim];
        if (i == 0) v = o.beta2 * v + (1 - o.beta2) * mean_square;
        m = o.beta1 * m + (1 - o.beta1) * g[i];
        w = w - lr * (m / (1 - std::pow(o.beta1, t))) / (std::sqrt(v / (1 - std::pow(o.beta2, t))) + o.eps);
        break;
      }
      case SparseOptimizerKind::kFtrl: {
        double& z = s[i];
        double& n = s[dim + i];
        const double sigma = (std::sqrt(n + g[i] * g[i]) - std::sqrt(n)) / lr;
        z = z + g[i] - sigma * w;
        n = n + g[i] * g[i];
        w = std::fabs(z) <= o.l1 ? 0 : -(z - std::copysign(o.l1, z)) / ((o.beta + std::sqrt(n)) / lr + o.l2);
        break;
      }
      case SparseOptimizerKind::kRmsProp:
        s[i] = o.decay * s[i] + (1 - o.decay) * g[i] * g[i];
        w = w - lr * g[i] / (std::sqrt(s[i]) + o.eps);
        break;
    }
  }
  return row;
}

class Optimizer : public testing::TestWithParam<SparseOptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(All, Optimizer, testing::ValuesIn(kAllOptimizers));

void ExpectNear(const std::vector<float>& actual, const Doubles& expected, double scale) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], kRelative * (std::fabs(expected[i]) + scale)) << "element " << i;
  }
}

TEST_P(Optimizer, OneUpdateEqualsTheFormulaInDouble) {
  const SparseOptimizer o = TestOptimizer(GetParam());
  for (const uint32_t dim : {1u, 7u, 8u, 16u, 129u}) {
    for (const uint32_t t : {1u, 2u, 1000u}) {
      SCOPED_TRACE(testing::Message() << "dim " << dim << ", t " << t);
      std::mt19937_64 random(dim * 31 + t);
      std::uniform_real_distribution<float> signed_value(-1, 1), positive(0.1f, 2);
      std::vector<float> w(dim), gradient(dim), state(StateFloats(o.kind, dim));
      for (float& x : w) x = signed_value(random);
      for (float& x : gradient) x = 3 * signed_value(random);
      for (float& x : state) x = positive(random);
      const Row before = {Doubles(w.begin(), w.end()), Doubles(state.begin(), state.end())};
      const RowStep step = {.learning_rate = 0.13 * 0.7, .gradient_scale = 0.375f, .updates = t};
      UpdateRow(o, step, gradient.data(), dim, w.data(), state.data());
      const Row after = Reference(o, 0.13 * 0.7, 0.375, t, Doubles(gradient.begin(), gradient.end()), before);
      ExpectNear(w, after.w, 1);
      ExpectNear(state, after.s, 1);
      EXPECT_NE(after.w, before.w);
    }
  }
}

// Rounding must not pile up either: state and weights go on from their own floats.
TEST_P(Optimizer, FiftyUpdatesStayWithTheFormula) {
  constexpr uint32_t kDim = 9;
  TableSpec spec = TestSpec("t", kDim, GetParam());
  const RowLayout layout = spec.Layout();
  std::vector<float> record(layout.record_bytes() / 4 + 1);
  char* const bytes = reinterpret_cast<char*>(record.data());
  InitRowCpu(spec, 4, bytes);
  Row reference = {Doubles(layout.Weights(bytes), layout.Weights(bytes) + kDim),
                   Doubles(layout.State(bytes), layout.State(bytes) + layout.state_floats())};
  std::mt19937_64 random(5);
  for (int t = 1; t <= 50; ++t) {
    std::vector<float> gradient(kDim);
    for (float& x : gradient) x = std::uniform_real_distribution<float>(-1, 1)(random);
    RowUpdate(spec, {.gradient_scale = 0.5, .learning_rate_factor = 0.25})(4, gradient.data(), bytes);
    reference = Reference(spec.optimizer, 0.13 * 0.25, 0.5, t, Doubles(gradient.begin(), gradient.end()), reference);
  }
  for (uint32_t i = 0; i < kDim; ++i) EXPECT_NEAR(layout.Weights(bytes)[i], reference.w[i], 3e-5) << i;
  EXPECT_EQ(layout.Metadata(bytes).updates, 50u);
}

TEST_P(Optimizer, AGradientOfZeroLeavesFiniteNumbers) {
  TableSpec spec = TestSpec("t", 4, GetParam());
  spec.optimizer.initial_accumulator = 0;
  spec.optimizer.eps = 1e-8;
  const RowLayout layout = spec.Layout();
  std::vector<float> record(layout.record_bytes() / 4 + 1);
  char* const bytes = reinterpret_cast<char*>(record.data());
  InitRowCpu(spec, 4, bytes);
  for (const double factor : {1.0, 0.0}) {  // A schedule may start at 0.
    RowUpdate(spec, {.learning_rate_factor = factor})(4, std::vector<float>(4, 0.0f).data(), bytes);
    RowUpdate(spec, {.learning_rate_factor = factor})(4, std::vector<float>(4, 1e-30f).data(), bytes);
    for (uint64_t i = 0; i < layout.metadata_offset() / 4; ++i) ASSERT_TRUE(std::isfinite(record[i])) << i;
  }
}

TEST(OptimizerByHand, Sgd) {
  float w[1] = {2};
  UpdateRow({.kind = SparseOptimizerKind::kSgd, .weight_decay = 0.5}, {.learning_rate = 0.25}, std::vector{3.0f}.data(),
            1, w, nullptr);
  EXPECT_FLOAT_EQ(w[0], 1);  // 2 - 0.25 (3 + 0.5 * 2)
}

TEST(OptimizerByHand, Momentum) {
  float w[1] = {2}, m[1] = {4};
  UpdateRow({.kind = SparseOptimizerKind::kMomentum, .momentum = 0.5}, {.learning_rate = 0.25},
            std::vector{3.0f}.data(), 1, w, m);
  EXPECT_FLOAT_EQ(m[0], 5);     // 0.5 * 4 + 3
  EXPECT_FLOAT_EQ(w[0], 0.75);  // 2 - 0.25 * 5
}

TEST(OptimizerByHand, Adagrad) {
  float w[2] = {1, 1}, a[2] = {0, 16};
  UpdateRow({.kind = SparseOptimizerKind::kAdagrad, .eps = 1}, {.learning_rate = 2}, std::vector{3.0f, 3.0f}.data(), 2,
            w, a);
  EXPECT_THAT(a, testing::ElementsAre(9, 25));
  EXPECT_FLOAT_EQ(w[0], -0.5);  // 1 - 2 * 3 / (3 + 1)
  EXPECT_FLOAT_EQ(w[1], 0);     // 1 - 2 * 3 / (5 + 1)
}

// The mean of the squares, not the square of the mean, which would be 12.25.
TEST(OptimizerByHand, RowwiseAdagradGrowsByTheMeanOfSquares) {
  float w[2] = {1, 1}, a[1] = {0};
  UpdateRow({.kind = SparseOptimizerKind::kRowwiseAdagrad, .eps = 0.5}, {.learning_rate = 1},
            std::vector{3.0f, 4.0f}.data(), 2, w, a);
  EXPECT_EQ(a[0], 12.5f);
  EXPECT_NEAR(w[0], 1 - 3 / (3.5355339 + 0.5), 1e-6);
  EXPECT_NEAR(w[1], 1 - 4 / (3.5355339 + 0.5), 1e-6);
}

TEST(OptimizerByHand, Adam) {
  float w[1] = {1}, state[2] = {2, 4};
  UpdateRow({.kind = SparseOptimizerKind::kAdam, .beta1 = 0.5, .beta2 = 0.75, .eps = 1},
            {.learning_rate = 3, .updates = 2}, std::vector{4.0f}.data(), 1, w, state);
  EXPECT_FLOAT_EQ(state[0], 3);  // 0.5 * 2 + 0.5 * 4
  EXPECT_FLOAT_EQ(state[1], 7);  // 0.75 * 4 + 0.25 * 16
  EXPECT_FLOAT_EQ(w[0], -1.4);   // 1 - 3 (3 / 0.75) / (sqrt(7 / 0.4375) + 1)
}

TEST(OptimizerByHand, RowwiseAdam) {
  float w[2] = {1, 1}, state[3] = {2, 0, 5};
  UpdateRow({.kind = SparseOptimizerKind::kRowwiseAdam, .beta1 = 0.5, .beta2 = 0.5, .eps = 1},
            {.learning_rate = 1.5, .updates = 2}, std::vector{2.0f, 4.0f}.data(), 2, w, state);
  EXPECT_THAT(state, testing::ElementsAre(2, 2, 7.5));  // 0.5 * 5 + 0.5 * (4 + 16) / 2
  // sqrt(7.5 / 0.75) + 1 = 4.1622777; 1 - 1.5 (2 / 0.75) / 4.1622777
  EXPECT_NEAR(w[0], 0.0389877, 1e-6);
  EXPECT_NEAR(w[1], 0.0389877, 1e-6);
}

TEST(OptimizerByHand, Ftrl) {
  const SparseOptimizer o = {.kind = SparseOptimizerKind::kFtrl, .l1 = 1, .l2 = 2, .beta = 3};
  float w[1] = {2}, state[2] = {-4, 9};
  UpdateRow(o, {.learning_rate = 0.5}, std::vector{4.0f}.data(), 1, w, state);
  // s = (5 - 3) / 0.5 = 4; z = -4 + 4 - 4 * 2; w = -(-8 + 1) / ((3 + 5) / 0.5 + 2)
  EXPECT_FLOAT_EQ(state[0], -8);
  EXPECT_FLOAT_EQ(state[1], 25);
  EXPECT_FLOAT_EQ(w[0], 7.0 / 18);
  float small[1] = {0}, small_state[2] = {-0.25, 9};
  UpdateRow(o, {.learning_rate = 0.5}, std::vector{0.5f}.data(), 1, small, small_state);
  EXPECT_EQ(small[0], 0);  // |z| = 0.25 <= l1
}

TEST(OptimizerByHand, RmsProp) {
  float w[1] = {1}, v[1] = {20};
  UpdateRow({.kind = SparseOptimizerKind::kRmsProp, .eps = 1, .decay = 0.75}, {.learning_rate = 2},
            std::vector{2.0f}.data(), 1, w, v);
  EXPECT_FLOAT_EQ(v[0], 16);    // 0.75 * 20 + 0.25 * 4
  EXPECT_FLOAT_EQ(w[0], 0.2f);  // 1 - 2 * 2 / (4 + 1)
}

// The z of a new row is such that FTRL's closed form gives the initial weight: an update by nothing keeps it.
TEST(Ftrl, ANewRowReproducesItsInitialWeights) {
  TableSpec spec = TestSpec("t", 64, SparseOptimizerKind::kFtrl);
  const RowLayout layout = spec.Layout();
  std::vector<float> record(layout.record_bytes() / 4);
  char* const bytes = reinterpret_cast<char*>(record.data());
  InitRowCpu(spec, 77, bytes);
  const std::vector<float> initial(record.begin(), record.begin() + 64);
  RowUpdate(spec, {})(77, std::vector<float>(64, 0.0f).data(), bytes);
  for (size_t i = 0; i < initial.size(); ++i) {
    EXPECT_NE(initial[i], 0);
    EXPECT_NEAR(record[i], initial[i], 1e-6 * std::fabs(initial[i]) + 1e-8) << i;
  }
}

TEST(State, StartsAtTheInitialAccumulatorForAdagradAndAtZeroElsewhere) {
  for (const SparseOptimizerKind kind : kAllOptimizers) {
    if (kind == SparseOptimizerKind::kFtrl) continue;
    std::vector<float> weights(5, 1), state(StateFloats(kind, 5), -1);
    InitState(TestOptimizer(kind), weights.data(), 5, state.data());
    const bool adagrad = kind == SparseOptimizerKind::kAdagrad || kind == SparseOptimizerKind::kRowwiseAdagrad;
    EXPECT_THAT(state, testing::Each(adagrad ? 0.3f : 0.0f));
  }
}

TEST(RowLayout, CountsWeightsStateAndMetadata) {
  const struct {
    SparseOptimizerKind kind;
    uint64_t floats;
  } expected[] = {{SparseOptimizerKind::kSgd, 5},      {SparseOptimizerKind::kMomentum, 10},
                  {SparseOptimizerKind::kAdagrad, 10}, {SparseOptimizerKind::kRowwiseAdagrad, 6},
                  {SparseOptimizerKind::kAdam, 15},    {SparseOptimizerKind::kRowwiseAdam, 11},
                  {SparseOptimizerKind::kFtrl, 15},    {SparseOptimizerKind::kRmsProp, 10}};
  for (const auto& [kind, floats] : expected) {
    const RowLayout layout(5, kind);
    EXPECT_EQ(layout.record_bytes(), 4 * floats + 16);
    EXPECT_EQ(layout.slot_bytes() % 16, 0u);
    EXPECT_LT(layout.slot_bytes() - layout.record_bytes(), 16u);
  }
}

TEST(RowLayout, SixteenBitWeightsTakeTwoBytesAndTheStateBeginsAtAMultipleOfFour) {
  for (const RowType storage : {RowType::kBfloat16, RowType::kFloat16}) {
    EXPECT_EQ(RowLayout(64, SparseOptimizerKind::kRowwiseAdagrad, storage).record_bytes(), 2 * 64 + 4 + 16u);
    EXPECT_EQ(RowLayout(5, SparseOptimizerKind::kAdam, storage).record_bytes(), 2 * 5 + 2 + 4 * 10 + 16u);
    EXPECT_EQ(RowLayout(1, SparseOptimizerKind::kSgd, storage).record_bytes(), 4 + 16u);
  }
}

TEST(MeanSquare, VectorsEqualThePlainLoopBitForBit) {
  std::mt19937_64 random(6);
  std::uniform_real_distribution<float> uniform(-3, 3);
  for (uint32_t dim = 1; dim <= 300; ++dim) {
    std::vector<float> gradient(dim);
    double expected = 0;
    for (float& g : gradient) g = uniform(random);
    for (const float g : gradient) expected += 0.3 * 0.3 * g * g;
    const double plain = MeanSquare(gradient.data(), dim, 0.3f);
    ASSERT_EQ(MeanSquareSimd(gradient.data(), dim, 0.3f), plain) << dim;
    ASSERT_NEAR(plain, expected / dim, 1e-6 * plain);
  }
}

// Twice the same from the same record, and another rounding for another key, update or table.
TEST_P(Optimizer, RoundingIsAFunctionOfTableKeyAndUpdate) {
  TableSpec spec = TestSpec("t", 33, GetParam());
  spec.storage = RowType::kBfloat16;
  const auto updated = [](const TableSpec& spec, Key key, int updates) {
    std::string record(spec.Layout().record_bytes(), '\x7f');
    InitRowCpu(spec, 4, record.data());
    for (int i = 0; i < updates; ++i) RowUpdate(spec, {})(key, std::vector<float>(33, 0.01f).data(), record.data());
    return record;
  };
  EXPECT_EQ(updated(spec, 4, 3), updated(spec, 4, 3));
  EXPECT_NE(updated(spec, 4, 1), updated(spec, 5, 1));
  EXPECT_NE(RoundingSeed(1, 4, 1), RoundingSeed(1, 4, 2));
  EXPECT_NE(RoundingSeed(1, 4, 1), RoundingSeed(2, 4, 1));
}

TEST(CheckGradients, LimitsTheScaledGradient) {
  const TableSpec spec = TestSpec("t", 2, SparseOptimizerKind::kSgd);
  const std::vector<Key> keys = {8, 9};
  EXPECT_TRUE(CheckGradients(spec, keys, std::vector{1e14f, 0.0f, 0.0f, -1e14f}, 1).ok());
  EXPECT_TRUE(CheckGradients(spec, keys, std::vector{1e17f, 0.0f, 0.0f, -1e17f}, 1e-3).ok());
  EXPECT_FALSE(CheckGradients(spec, keys, std::vector{1e14f, 0.0f, 0.0f, 0.0f}, 100).ok());
  const absl::Status status = CheckGradients(spec, keys, std::vector{0.0f, 0.0f, 0.0f, -1e16f}, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("key 9, column 1"));
}

}  // namespace
}  // namespace sparrow
