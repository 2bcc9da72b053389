#include "dense/dense_optimizer.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "base/random.h"
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

TEST(DenseOptimizer, LambByHand) {
  // Two weights as one tensor. m^ / (sqrt(v^) + 1) is 3 / 4 and 0; decay adds half of 1 and of 2: u = (1.25, 1).
  // The ratio is |(1, 2)| / |(1.25, 1)|.
  const char* const text = "learning_rate: 0.1 lamb { beta1: 0.5 beta2: 0.75 eps: 1 weight_decay: 0.5 }";
  const double ratio = std::sqrt(5 / (1.25 * 1.25 + 1));
  std::vector<float> weights = {1, 2};
  Make(text, 2)->Step(weights, std::vector<float>{3, 0}, {});
  EXPECT_NEAR(weights[0], 1 - 0.1 * ratio * 1.25, 1e-6);
  EXPECT_NEAR(weights[1], 2 - 0.1 * ratio, 1e-6);
  // Outside the tensors: neither decayed nor scaled.
  auto plain = MakeDenseOptimizer(Parse(text), 2, /*decayed=*/0);
  ASSERT_TRUE(plain.ok());
  weights = {1, 2};
  (*plain)->Step(weights, std::vector<float>{3, 0}, {});
  EXPECT_NEAR(weights[0], 1 - 0.1 * 0.75, 1e-7);
  EXPECT_EQ(weights[1], 2);
}

// A tensor of zeros grows by the learning rate alone; one without a direction stays.
TEST(DenseOptimizer, LambsRatioIs1WithoutANorm) {
  std::vector<float> weights = {0};
  Make("learning_rate: 0.1 lamb { eps: 0 }", 1)->Step(weights, std::vector<float>{5}, {});
  EXPECT_NEAR(weights[0], -0.1, 1e-7);
  weights = {7};
  Make("learning_rate: 0.1 lamb { weight_decay: 0 }", 1)->Step(weights, std::vector<float>{0}, {});
  EXPECT_EQ(weights[0], 7);
}

// A model of tensors with these shapes.
class Tensors final : public DenseParameters {
 public:
  explicit Tensors(const std::vector<std::vector<uint64_t>>& shapes) {
    for (const std::vector<uint64_t>& shape : shapes) {
      uint64_t size = 1;
      for (const uint64_t extent : shape) size *= extent;
      const uint64_t offset = weights_.size();
      parameters_.push_back(
          {.name = "t" + std::to_string(parameters_.size()), .shape = shape, .offset = offset, .size = size});
      weights_.resize(offset + size);
    }
    gradients_.resize(weights_.size());
  }
  void set_decayed(uint64_t decayed) { decayed_ = decayed; }
};

// Five steps beside those of tests/golden/lamb_golden.py.
TEST(DenseOptimizer, LambEqualsTheGoldenRun) {
  const auto golden =
      nlohmann::json::parse(ReadFile(std::string(SPARROW_SOURCE_DIR) + "/tests/golden/lamb_golden.json").value());
  v1::OptimizerConfig config;
  config.set_learning_rate(golden["learning_rate"]);
  config.mutable_lamb()->set_beta1(golden["beta1"]);
  config.mutable_lamb()->set_beta2(golden["beta2"]);
  config.mutable_lamb()->set_eps(golden["eps"]);
  config.mutable_lamb()->set_weight_decay(golden["weight_decay"]);
  Tensors model(golden["shapes"].get<std::vector<std::vector<uint64_t>>>());
  const auto optimizer = MakeDenseOptimizer(config, model);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  for (const Parameter& tensor : model.parameters()) {
    for (uint64_t i = 0; i < tensor.size; ++i) {
      model.weights()[tensor.offset + i] =
          static_cast<float>(RandomUniform(HashBytes(tensor.name), i) - 0.5) * (tensor.name == "t2" ? 0.0f : 1.0f);
    }
  }
  ASSERT_EQ(golden["after"].size(), 5u);
  for (uint64_t step = 0; step < golden["after"].size(); ++step) {
    for (uint64_t i = 0; i < model.gradients().size(); ++i) {
      model.gradients()[i] = static_cast<float>(RandomUniform(100 + step, i) - 0.5);
    }
    (*optimizer)
        ->Step(
            model.weights(), model.gradients(),
            {.gradient_scale = golden["gradient_scale"], .learning_rate_factor = 1.0 / static_cast<double>(step + 1)});
    for (const Parameter& tensor : model.parameters()) {
      const auto expected = golden["after"][step][tensor.name].get<std::vector<double>>();
      for (size_t i = 0; i < expected.size(); ++i) {
        // The first and last elements, one after the other.
        const uint64_t at = i < expected.size() / 2 ? i : tensor.size - expected.size() + i;
        EXPECT_TRUE(Near(model.weights()[tensor.offset + at], expected[i], kTolerance))
            << tensor.name << " " << at << " after step " << step << ": " << model.weights()[tensor.offset + at]
            << ", not " << expected[i];
      }
    }
  }
}

// Several optimizers, each of a slice, do what one of the whole does: to the bit, but for LAMB's ratios, whose sums
// have another order.
TEST(DenseOptimizer, SlicesTogetherEqualTheWhole) {
  Tensors whole({{300, 70}, {3, 5}, {90, 100}, {70}, {1}, {257}});
  whole.set_decayed(300 * 70 + 15 + 9000);
  const uint64_t size = whole.weights().size();
  for (const char* kind : {"adamw { weight_decay: 0.3 }", "lamb { weight_decay: 0.3 }", "sgd { weight_decay: 0.1 }"}) {
    const v1::OptimizerConfig config = Parse(std::string("learning_rate: 0.1 ") + kind);
    for (const std::vector<uint64_t>& cuts :
         {std::vector<uint64_t>{10}, {0, 21000, 21001}, {21004, 21004, size - 1}, {size}}) {
      auto optimizer = MakeDenseOptimizer(config, whole).value();
      std::vector<std::unique_ptr<DenseOptimizer>> parts;
      std::vector<Slice> slices;
      for (size_t i = 0; i <= cuts.size(); ++i) {
        slices.push_back({i == 0 ? 0 : cuts[i - 1], i == cuts.size() ? size : cuts[i]});
        parts.push_back(MakeDenseOptimizer(config, whole, slices.back()).value());
      }
      std::vector<float> weights = RandomFloats(1, size), other = weights;
      const auto of = [](auto& values, const Slice& slice) {
        return std::span<float>(values).subspan(slice.begin, slice.size());
      };
      for (int step = 0; step < 3; ++step) {
        std::vector<float> gradients = RandomFloats(50 + step, size);
        const DenseStepOptions options = {.gradient_scale = 0.5, .learning_rate_factor = 0.9};
        optimizer->Step(weights, gradients, options);
        std::vector<std::span<double>> sums;
        for (size_t i = 0; i < parts.size(); ++i) {
          sums.push_back(parts[i]->Begin(of(other, slices[i]), of(gradients, slices[i]), options));
          ASSERT_EQ(sums[i].size(), sums[0].size());
        }
        for (size_t s = 0; s < sums[0].size(); ++s) {
          double total = 0;
          for (const std::span<double> sum : sums) total += sum[s];
          for (const std::span<double> sum : sums) sum[s] = total;
        }
        for (size_t i = 0; i < parts.size(); ++i) {
          parts[i]->End(of(other, slices[i]), of(gradients, slices[i]), options);
        }
      }
      if (!config.has_lamb()) {
        EXPECT_EQ(weights, other) << kind;
      }
      for (uint64_t i = 0; i < size; ++i) ASSERT_TRUE(Near(other[i], weights[i], kTolerance)) << kind << " " << i;
    }
  }
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
    if (config_.has_lamb()) return Lamb(w, gradients, lr);
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
  // Of one tensor.
  void Lamb(Vector* w, const Vector& g, double lr) {
    const v1::Lamb& c = config_.lamb();
    Vector u(w->size());
    double weights = 0, directions = 0;
    for (size_t i = 0; i < w->size(); ++i) {
      a_[i] = c.beta1() * a_[i] + (1 - c.beta1()) * g[i];
      b_[i] = c.beta2() * b_[i] + (1 - c.beta2()) * g[i] * g[i];
      u[i] = (a_[i] / (1 - std::pow(c.beta1(), t_))) / (std::sqrt(b_[i] / (1 - std::pow(c.beta2(), t_))) + c.eps()) +
             c.weight_decay() * (*w)[i];
      weights += (*w)[i] * (*w)[i];
      directions += u[i] * u[i];
    }
    const double ratio = weights > 0 && directions > 0 ? std::sqrt(weights / directions) : 1;
    for (size_t i = 0; i < w->size(); ++i) (*w)[i] -= lr * ratio * u[i];
  }

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
  double decay = 0;
  if (config.has_sgd()) decay = config.sgd().weight_decay();
  if (config.has_adamw()) decay = config.adamw().weight_decay();
  if (config.has_lamb()) decay = 1;  // The decay is all of the direction, and the ratio takes its size away.
  EXPECT_NEAR(weights[0], 2 * (1 - config.learning_rate() * decay), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DenseOptimizerKinds,
    ::testing::Values("learning_rate: 0.1 sgd { weight_decay: 0.3 }", "learning_rate: 0.1 momentum { momentum: 0.8 }",
                      "learning_rate: 0.1 adagrad { eps: 0.01 initial_accumulator: 0.2 }",
                      "learning_rate: 0.1 adam { beta1: 0.8 beta2: 0.95 eps: 0.01 }",
                      "learning_rate: 0.1 adamw { beta1: 0.8 beta2: 0.95 eps: 0.01 weight_decay: 0.2 }",
                      "learning_rate: 0.1 lamb { beta1: 0.8 beta2: 0.95 eps: 0.01 weight_decay: 0.2 }"));

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
  EXPECT_EQ(names("lamb {}"), Names({"m", "v"}));
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
  EXPECT_THAT(message("learning_rate: 1 lamb { beta2: 1 }"), HasSubstr("lamb.beta2 is 1"));
  EXPECT_THAT(message("learning_rate: 1 lamb { eps: -1 }"), HasSubstr("lamb.eps is -1"));
  EXPECT_THAT(message("learning_rate: 1 adagrad { eps: -1 }"), HasSubstr("adagrad.eps is -1"));
  EXPECT_THAT(message("learning_rate: 1 momentum { momentum: 1.5 }"), HasSubstr("momentum.momentum is 1.5"));
  EXPECT_THAT(message("learning_rate: 1 sgd { weight_decay: -1 }"), HasSubstr("sgd.weight_decay is -1"));
}

}  // namespace
}  // namespace sparrow
