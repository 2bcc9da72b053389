#include "dense/dense_optimizer.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/dense/double_reference.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;
using testing::Near;
using testing::RandomFloats;
using testing::Vector;

constexpr double kTolerance = 2e-6;  // A few single-precision operations a step, a few steps.

v1::OptimizerConfig Parse(const std::string& text) {
  v1::OptimizerConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

std::unique_ptr<DenseOptimizer> Make(const std::string& text, uint64_t size) {
  auto optimizer = MakeDenseOptimizer(Parse(text), size);
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return std::move(optimizer).value();
}

// One weight of 1 through gradients 3 and -1 (each times a scale of 0.5 of what is passed in).
std::vector<double> TwoSteps(const std::string& text, double factor = 1) {
  auto optimizer = Make(text, 1);
  std::vector<float> weights = {1};
  std::vector<double> seen;
  for (float gradient : {6.0f, -2.0f}) {
    optimizer->Step(weights, std::vector<float>{gradient}, {.gradient_scale = 0.5, .learning_rate_factor = factor});
    seen.push_back(weights[0]);
  }
  return seen;
}

TEST(DenseOptimizer, SgdByHand) {
  // 1 - 0.1 * 3 = 0.7; 0.7 + 0.1 * 1 = 0.8
  const auto seen = TwoSteps("learning_rate: 0.1 sgd {}");
  EXPECT_NEAR(seen[0], 0.7, 1e-7);
  EXPECT_NEAR(seen[1], 0.8, 1e-7);
}

TEST(DenseOptimizer, SgdWeightDecayByHand) {
  // 1 - 0.1 * (3 + 0.5 * 1) = 0.65; 0.65 - 0.1 * (-1 + 0.5 * 0.65) = 0.7175
  const auto seen = TwoSteps("learning_rate: 0.1 sgd { weight_decay: 0.5 }");
  EXPECT_NEAR(seen[0], 0.65, 1e-7);
  EXPECT_NEAR(seen[1], 0.7175, 1e-7);
}

// What is not decayed is updated as by Adam, bit for bit.
TEST(DenseOptimizer, DecayIsForTheFirstElementsAlone) {
  constexpr uint64_t kSize = 20000, kDecayed = 9000;
  const std::string rest = "beta1: 0.5 beta2: 0.75 eps: 1e-8";
  const auto part =
      MakeDenseOptimizer(Parse("learning_rate: 0.1 adamw { weight_decay: 0.5 " + rest + " }"), kSize, kDecayed);
  const auto all = Make("learning_rate: 0.1 adamw { weight_decay: 0.5 " + rest + " }", kSize);
  const auto none = Make("learning_rate: 0.1 adamw { weight_decay: 0 " + rest + " }", kSize);
  ASSERT_TRUE(part.ok()) << part.status();
  std::vector<float> w = RandomFloats(1, kSize), w_all = w, w_none = w;
  for (uint64_t step = 0; step < 3; ++step) {
    const std::vector<float> g = RandomFloats(2 + step, kSize);
    (*part)->Step(w, g, {});
    all->Step(w_all, g, {});
    none->Step(w_none, g, {});
  }
  EXPECT_TRUE(std::equal(w.begin(), w.begin() + kDecayed, w_all.begin()));
  EXPECT_TRUE(std::equal(w.begin() + kDecayed, w.end(), w_none.begin() + kDecayed));
  EXPECT_NE(w_all, w_none);
}

TEST(DenseOptimizer, LearningRateFactorScalesTheStep) {
  // 1 - 0.05 * 3 = 0.85; 0.85 + 0.05 = 0.9
  const auto seen = TwoSteps("learning_rate: 0.1 sgd {}", 0.5);
  EXPECT_NEAR(seen[0], 0.85, 1e-7);
  EXPECT_NEAR(seen[1], 0.9, 1e-7);
}

TEST(DenseOptimizer, MomentumByHand) {
  // m = 3, w = 0.7; m = 0.5 * 3 - 1 = 0.5, w = 0.65
  const auto seen = TwoSteps("learning_rate: 0.1 momentum { momentum: 0.5 }");
  EXPECT_NEAR(seen[0], 0.7, 1e-7);
  EXPECT_NEAR(seen[1], 0.65, 1e-7);
}

TEST(DenseOptimizer, AdagradByHand) {
  // a = 7 + 9 = 16, w = 1 - 0.1 * 3 / (4 + 1) = 0.94; a = 17, w = 0.94 + 0.1 / (sqrt(17) + 1)
  const auto seen = TwoSteps("learning_rate: 0.1 adagrad { eps: 1 initial_accumulator: 7 }");
  EXPECT_NEAR(seen[0], 0.94, 1e-7);
  EXPECT_NEAR(seen[1], 0.94 + 0.1 / (std::sqrt(17.0) + 1), 1e-7);
}

TEST(DenseOptimizer, AdamByHand) {
  // m = 1.5, v = 2.25: m^ = 1.5 / 0.5 = 3, v^ = 2.25 / 0.25 = 9: w = 1 - 0.1 * 3 / (3 + 1) = 0.925
  // m = 0.75 - 0.5 = 0.25, v = 1.6875 + 0.25 = 1.9375: m^ = 0.25 / 0.75, v^ = 1.9375 / 0.4375
  const auto seen = TwoSteps("learning_rate: 0.1 adam { beta1: 0.5 beta2: 0.75 eps: 1 }");
  EXPECT_NEAR(seen[0], 0.925, 1e-7);
  EXPECT_NEAR(seen[1], 0.925 - 0.1 * (0.25 / 0.75) / (std::sqrt(1.9375 / 0.4375) + 1), 1e-7);
}

TEST(DenseOptimizer, AdamwDecaysTheWeightApartFromTheGradient) {
  // As Adam, but w first shrinks by 0.1 * 0.5 of itself: 0.95 - 0.075 = 0.875; 0.83125 - ...
  const auto seen = TwoSteps("learning_rate: 0.1 adamw { beta1: 0.5 beta2: 0.75 eps: 1 weight_decay: 0.5 }");
  EXPECT_NEAR(seen[0], 0.875, 1e-7);
  EXPECT_NEAR(seen[1], 0.875 * 0.95 - 0.1 * (0.25 / 0.75) / (std::sqrt(1.9375 / 0.4375) + 1), 1e-7);
}

// The formulas again, in double precision and one element at a time.
class Reference {
 public:
  Reference(const v1::OptimizerConfig& config, size_t n)
      : config_(config), a_(n, config.adagrad().initial_accumulator()), b_(n) {
    if (!config.has_adagrad()) std::fill(a_.begin(), a_.end(), 0.0);
  }
  void Step(Vector* w, const Vector& gradients, double factor) {
    ++t_;
    const double lr = config_.learning_rate() * factor;
    for (size_t i = 0; i < w->size(); ++i) {
      const double g = gradients[i];
      double& x = (*w)[i];
      if (config_.has_sgd()) x -= lr * (g + config_.sgd().weight_decay() * x);
      if (config_.has_momentum()) {
        a_[i] = config_.momentum().momentum() * a_[i] + g;
        x -= lr * a_[i];
      }
      if (config_.has_adagrad()) {
        a_[i] += g * g;
        x -= lr * g / (std::sqrt(a_[i]) + config_.adagrad().eps());
      }
      if (config_.has_adam()) Adam(config_.adam(), 0, lr, g, i, &x);
      if (config_.has_adamw()) Adam(config_.adamw(), config_.adamw().weight_decay(), lr, g, i, &x);
    }
  }

 private:
  template <typename Config>
  void Adam(const Config& c, double decay, double lr, double g, size_t i, double* x) {
    *x -= lr * decay * *x;
    a_[i] = c.beta1() * a_[i] + (1 - c.beta1()) * g;
    b_[i] = c.beta2() * b_[i] + (1 - c.beta2()) * g * g;
    *x -= lr * (a_[i] / (1 - std::pow(c.beta1(), t_))) / (std::sqrt(b_[i] / (1 - std::pow(c.beta2(), t_))) + c.eps());
  }

  const v1::OptimizerConfig config_;
  Vector a_, b_;
  int t_ = 0;
};

class DenseOptimizerKinds : public ::testing::TestWithParam<const char*> {};

TEST_P(DenseOptimizerKinds, ManyElementsEqualTheDoubleReference) {
  for (size_t n : {0, 1, 2, 31, 33, 257, 70'001}) {
    auto optimizer = Make(GetParam(), n);
    Reference reference(Parse(GetParam()), n);
    std::vector<float> weights = RandomFloats(5, n);
    Vector expected = testing::ToDouble(weights);
    for (int step = 0; step < 4; ++step) {
      const std::vector<float> gradients = RandomFloats(100 + step, n);
      Vector scaled(n);
      for (size_t i = 0; i < n; ++i) scaled[i] = gradients[i] * 0.25;
      optimizer->Step(weights, gradients, {.gradient_scale = 0.25, .learning_rate_factor = 1.0 / (step + 1)});
      reference.Step(&expected, scaled, 1.0 / (step + 1));
    }
    for (size_t i = 0; i < n; ++i) ASSERT_TRUE(Near(weights[i], expected[i], kTolerance)) << n << " " << i;
    EXPECT_EQ(optimizer->updates(), 4u);
  }
}

TEST_P(DenseOptimizerKinds, RestoredStateContinuesBitForBit) {
  constexpr size_t kSize = 257;
  std::vector<float> weights = RandomFloats(1, kSize);
  auto first = Make(GetParam(), kSize);
  const auto step = [&](DenseOptimizer* optimizer, std::vector<float>* w, int number) {
    optimizer->Step(*w, RandomFloats(50 + number, kSize), {.gradient_scale = 0.5, .learning_rate_factor = 0.9});
  };
  for (int i = 0; i < 3; ++i) step(first.get(), &weights, i);
  auto second = Make(GetParam(), kSize);
  second->set_updates(first->updates());
  const auto from = first->states();
  const auto to = second->states();
  ASSERT_EQ(from.size(), to.size());
  for (size_t s = 0; s < from.size(); ++s) {
    EXPECT_EQ(from[s].name, to[s].name);
    ASSERT_EQ(from[s].values.size(), kSize);
    std::copy(from[s].values.begin(), from[s].values.end(), to[s].values.begin());
  }
  std::vector<float> other = weights;
  step(first.get(), &weights, 3);
  step(second.get(), &other, 3);
  EXPECT_EQ(weights, other);
}

TEST_P(DenseOptimizerKinds, ZeroGradientWithoutHistoryChangesOnlyByDecay) {
  v1::OptimizerConfig config = Parse(GetParam());
  if (config.has_adagrad()) config.mutable_adagrad()->set_initial_accumulator(0);
  if (config.has_adagrad()) config.mutable_adagrad()->set_eps(0);
  if (config.has_adam()) config.mutable_adam()->set_eps(0);
  auto optimizer = MakeDenseOptimizer(config, 1);
  ASSERT_TRUE(optimizer.ok());
  std::vector<float> weights = {2};
  (*optimizer)->Step(weights, std::vector<float>{0}, {});
  const double decay = config.sgd().weight_decay() + (config.has_adamw() ? config.adamw().weight_decay() : 0);
  EXPECT_NEAR(weights[0], 2 * (1 - config.learning_rate() * (config.has_sgd() || config.has_adamw() ? decay : 0)),
              1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DenseOptimizerKinds,
    ::testing::Values("learning_rate: 0.1 sgd { weight_decay: 0.3 }", "learning_rate: 0.1 momentum { momentum: 0.8 }",
                      "learning_rate: 0.1 adagrad { eps: 0.01 initial_accumulator: 0.2 }",
                      "learning_rate: 0.1 adam { beta1: 0.8 beta2: 0.95 eps: 0.01 }",
                      "learning_rate: 0.1 adamw { beta1: 0.8 beta2: 0.95 eps: 0.01 weight_decay: 0.2 }"));

TEST(DenseOptimizer, StatesAreNamedForCheckpoints) {
  const auto names = [](const std::string& kind) {
    std::vector<std::string> result;
    for (const auto& state : Make("learning_rate: 1 " + kind, 3)->states()) result.push_back(state.name);
    return result;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("sgd {}"), Names());
  EXPECT_EQ(names("momentum {}"), Names({"momentum"}));
  EXPECT_EQ(names("adagrad {}"), Names({"accumulator"}));
  EXPECT_EQ(names("adam {}"), Names({"m", "v"}));
  EXPECT_EQ(names("adamw {}"), Names({"m", "v"}));
}

TEST(DenseOptimizer, BadConfigurationIsNamed) {
  const auto message = [](const std::string& text) {
    return std::string(MakeDenseOptimizer(Parse(text), 1).status().message());
  };
  EXPECT_THAT(message("sgd {}"), HasSubstr("train.optimizer.learning_rate is 0"));
  EXPECT_THAT(message("learning_rate: -1 sgd {}"), HasSubstr("learning_rate is -1"));
  EXPECT_THAT(message("learning_rate: inf sgd {}"), HasSubstr("learning_rate is inf"));
  EXPECT_THAT(message("learning_rate: 1"), HasSubstr("train.optimizer has no kind"));
  EXPECT_THAT(message("learning_rate: 1 ftrl {}"), HasSubstr("ftrl is for tables only"));
  EXPECT_THAT(message("learning_rate: 1 rmsprop {}"), HasSubstr("rmsprop is for tables only"));
  EXPECT_THAT(message("learning_rate: 1 rowwise_adagrad {}"), HasSubstr("rowwise_adagrad is for tables only"));
  EXPECT_THAT(message("learning_rate: 1 rowwise_adam {}"), HasSubstr("rowwise_adam is for tables only"));
  EXPECT_THAT(message("learning_rate: 1 adam { beta1: 1 }"), HasSubstr("adam.beta1 is 1"));
  EXPECT_THAT(message("learning_rate: 1 adam { beta2: -0.5 }"), HasSubstr("adam.beta2 is -0.5"));
  EXPECT_THAT(message("learning_rate: 1 adamw { weight_decay: nan }"), HasSubstr("adamw.weight_decay is nan"));
  EXPECT_THAT(message("learning_rate: 1 adagrad { eps: -1 }"), HasSubstr("adagrad.eps is -1"));
  EXPECT_THAT(message("learning_rate: 1 momentum { momentum: 1.5 }"), HasSubstr("momentum.momentum is 1.5"));
  EXPECT_THAT(message("learning_rate: 1 sgd { weight_decay: -1 }"), HasSubstr("sgd.weight_decay is -1"));
}

}  // namespace
}  // namespace sparrow
