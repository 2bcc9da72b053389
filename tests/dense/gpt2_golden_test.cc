// Ten steps of a small GPT-2 beside those of the hub's model in PyTorch (tests/golden/gpt2_golden.py).

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/random.h"
#include "dense/dense_optimizer.h"
#include "dense/gradient_norm.h"
#include "dense/language_model.h"
#include "dense/parameters.h"

namespace sparrow {
namespace {

using Json = nlohmann::json;

class Gpt2Golden : public ::testing::Test {
 protected:
  void SetUp() override {
    golden_ = Json::parse(ReadFile(std::string(SPARROW_SOURCE_DIR) + "/tests/golden/gpt2_golden.json").value());
    const Json& c = golden_["config"];
    config_.set_layers(c["layers"]);
    config_.set_heads(c["heads"]);
    config_.set_width(c["width"]);
    config_.set_context(c["context"]);
    config_.set_vocabulary(c["vocabulary"]);
    model_ = MakeGpt2(config_, v1::TrainConfig::NOTHING, golden_["train"]["seed"]);
  }

  // Elements within `tolerance` relative to the largest that is usual in the tensor.
  void ExpectNear(const Json& expected, double tolerance) {
    ASSERT_EQ(expected.size(), model_->parameters().size());
    for (const Parameter& parameter : model_->parameters()) {
      ASSERT_TRUE(expected.contains(parameter.name)) << parameter.name;
      const Json& value = expected[parameter.name];
      EXPECT_EQ(parameter.shape, value["shape"].get<std::vector<uint64_t>>()) << parameter.name;
      const std::span<const float> elements = ElementsOf(parameter, std::span<const float>(model_->weights()));
      double sum = 0, squares = 0;
      for (const double element : elements) sum += element, squares += element * element;
      const double size = static_cast<double>(elements.size());
      const double usual = std::max(std::sqrt(squares / size), 1e-3);
      const auto first = value["first"].get<std::vector<double>>();
      const auto last = value["last"].get<std::vector<double>>();
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_NEAR(elements[i], first[i], tolerance * usual) << parameter.name << " " << i;
        EXPECT_NEAR(elements[elements.size() - last.size() + i], last[i], tolerance * usual) << parameter.name;
      }
      EXPECT_NEAR(sum, value["sum"].get<double>(), tolerance * usual * size) << parameter.name;
      EXPECT_NEAR(squares, value["sum_of_squares"].get<double>(), 2 * tolerance * usual * usual * size)
          << parameter.name;
    }
  }

  Json golden_;
  v1::Gpt2 config_;
  std::unique_ptr<LanguageModel> model_;
};

TEST_F(Gpt2Golden, InitialParametersAreEqual) { ExpectNear(golden_["before"], 1e-6); }

TEST_F(Gpt2Golden, TenStepsAgree) {
  const Json& train = golden_["train"];
  v1::OptimizerConfig optimizer_config;
  optimizer_config.set_learning_rate(train["learning_rate"]);
  optimizer_config.mutable_adamw()->set_beta1(train["beta1"]);
  optimizer_config.mutable_adamw()->set_beta2(train["beta2"]);
  optimizer_config.mutable_adamw()->set_eps(train["eps"]);
  optimizer_config.mutable_adamw()->set_weight_decay(train["weight_decay"]);
  const auto optimizer = MakeDenseOptimizer(optimizer_config, model_->weights().size(), model_->decayed()).value();
  const uint64_t vocabulary = config_.vocabulary();
  const size_t sequences = train["sequences"];
  ASSERT_EQ(golden_["losses"].size(), 10u);
  for (size_t step = 0; step < golden_["losses"].size(); ++step) {
    std::vector<uint16_t> tokens, targets;
    for (size_t s = 0; s < sequences; ++s) {
      uint64_t at = RandomBits(1000 * step + s, 0) % vocabulary;
      for (uint64_t t = 0; t < config_.context(); ++t) {
        tokens.push_back(static_cast<uint16_t>(at));
        at = (at + 1 + RandomBits(1000 * step + s, t + 1) % 3) % vocabulary;
        targets.push_back(static_cast<uint16_t>(at));
      }
    }
    std::ranges::fill(model_->gradients(), 0.0f);
    const double loss =
        model_->ForwardBackward({.tokens = tokens, .targets = targets, .length = config_.context()}, {});
    const double count = static_cast<double>(tokens.size());
    const double expected = golden_["losses"][step];
    EXPECT_NEAR(loss / count, expected, 1e-5 * expected) << "step " << step;
    const GradientClip clip =
        GradientNormCpu(model_->gradients(), 1 / count, {.max_norm = train["clip_norm"].get<double>()});
    const double norm = golden_["norms"][step];
    EXPECT_NEAR(clip.norm, norm, 1e-4 * norm) << "step " << step;
    optimizer->Step(model_->weights(), model_->gradients(), {.gradient_scale = clip.scale / count});
  }
  ExpectNear(golden_["after"], 1e-3);
}

}  // namespace
}  // namespace sparrow
