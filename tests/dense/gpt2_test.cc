#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "dense/attention_dropout.h"
#include "dense/dropout.h"
#include "dense/gpt2_layout.h"
#include "dense/language_model.h"
#include "tests/dense/gpt2_reference.h"

namespace sparrow {
namespace {

using testing::Derivative;
using testing::Near;
using testing::ToDouble;
using testing::Vector;
using v1::TrainConfig;

constexpr uint64_t kSeed = 4242;

v1::Gpt2 SmallConfig(double dropout = 0) {
  v1::Gpt2 config;
  config.set_layers(2);
  config.set_heads(2);
  config.set_width(6);
  config.set_context(5);
  config.set_vocabulary(11);
  config.set_dropout(dropout);
  return config;
}

std::vector<uint16_t> Tokens(uint64_t seed, size_t n, uint64_t vocabulary) {
  std::vector<uint16_t> tokens(n);
  for (size_t i = 0; i < n; ++i) tokens[i] = static_cast<uint16_t>(RandomBits(seed, i) % vocabulary);
  return tokens;
}

// A small model whose weights are large enough that all parts of it matter.
std::unique_ptr<LanguageModel> Model(const v1::Gpt2& config, TrainConfig::Recompute recompute = TrainConfig::NOTHING) {
  std::unique_ptr<LanguageModel> model = MakeGpt2(config, recompute, kSeed);
  const std::vector<float> more = testing::RandomFloats(7, model->weights().size());
  for (size_t i = 0; i < more.size(); ++i) model->weights()[i] += 0.5f * more[i];
  return model;
}

// The model's own masks: they are the definition, and what is tested is where they act.
testing::DropFactors FactorsOf(const v1::Gpt2& config, uint64_t step) {
  const uint64_t seed = RandomBits(RandomBits(kSeed, 0x64726f706f7574), step);
  const auto at = [seed, share = config.dropout()](uint64_t block, int place) {
    return Dropout::Of(share, RandomBits(seed, block * 4 + static_cast<uint64_t>(place)));
  };
  return {.element = [at](uint64_t block, int place, uint64_t element) -> double {
            return at(block, place).Factor(element);
          },
          .weight = [at](uint64_t block, uint64_t head, size_t t, size_t u) -> double {
            return HeadDropout::Of(at(block, testing::kDropWeights), head).Factor(t, u);
          }};
}

struct Case {
  const char* name;
  size_t sequences, length;
  double dropout;
};

class Gpt2Test : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    config_ = SmallConfig(c.dropout);
    tokens_ = Tokens(1, c.sequences * c.length, config_.vocabulary());
    targets_ = Tokens(2, c.sequences * c.length, config_.vocabulary());
    batch_ = {.tokens = tokens_, .targets = targets_, .length = static_cast<int64_t>(c.length)};
  }

  double Reference(const LanguageModel& model, const Vector& weights) const {
    const size_t length = GetParam().length;
    double loss = 0;
    for (size_t s = 0; s < GetParam().sequences; ++s) {
      const std::vector<Vector> logits =
          testing::Gpt2Logits(model.parameters(), weights, config_.heads(),
                              std::span(tokens_).subspan(s * length, length), place_.first_sequence + s, factors());
      for (size_t t = 0; t < length; ++t) loss += testing::CrossEntropy(logits[t], targets_[s * length + t]);
    }
    return loss;
  }
  testing::DropFactors factors() const { return FactorsOf(config_, place_.step); }

  v1::Gpt2 config_;
  std::vector<uint16_t> tokens_, targets_;
  Sequences batch_;
  const DropoutPlace place_ = {.step = 3, .first_sequence = 5};
};

TEST_P(Gpt2Test, LossEqualsDoubleReference) {
  const auto model = Model(config_);
  const double expected = Reference(*model, ToDouble(model->weights()));
  EXPECT_TRUE(Near(model->ForwardBackward(batch_, place_), expected, 1e-5)) << expected;
}

TEST_P(Gpt2Test, GradientsEqualFiniteDifferences) {
  const auto model = Model(config_);
  model->ForwardBackward(batch_, place_);
  Vector weights = ToDouble(model->weights());
  for (const Parameter& parameter : model->parameters()) {
    for (uint64_t i = 0; i < parameter.size; i += std::max<uint64_t>(1, parameter.size / 7)) {
      const double expected = Derivative([&] { return Reference(*model, weights); }, &weights[parameter.offset + i]);
      ASSERT_TRUE(Near(model->gradients()[parameter.offset + i], expected, 1e-4))
          << parameter.name << " " << i << ": " << model->gradients()[parameter.offset + i] << ", not " << expected;
    }
  }
}

// What is computed again is computed equally.
TEST_P(Gpt2Test, RecomputationChangesNoBit) {
  const auto plain = Model(config_);
  const double loss = plain->ForwardBackward(batch_, place_);
  for (const auto recompute : {TrainConfig::CHEAP, TrainConfig::BLOCKS}) {
    const auto model = Model(config_, recompute);
    EXPECT_EQ(model->ForwardBackward(batch_, place_), loss);
    EXPECT_TRUE(std::ranges::equal(model->gradients(), plain->gradients())) << recompute;
  }
}

// Sequence by sequence: the sums are those of the whole, and so are the masks.
TEST_P(Gpt2Test, GradientsOfPartsAddUp) {
  const auto whole = Model(config_);
  const double loss = whole->ForwardBackward(batch_, place_);
  const auto parts = Model(config_);
  double sum = 0;
  const size_t length = GetParam().length;
  for (size_t s = 0; s < GetParam().sequences; ++s) {
    const Sequences part = {.tokens = batch_.tokens.subspan(s * length, length),
                            .targets = batch_.targets.subspan(s * length, length),
                            .length = batch_.length};
    sum += parts->ForwardBackward(part, {.step = place_.step, .first_sequence = place_.first_sequence + s});
  }
  EXPECT_TRUE(Near(sum, loss, 1e-6));
  for (size_t i = 0; i < whole->gradients().size(); ++i) {
    ASSERT_TRUE(Near(parts->gradients()[i], whole->gradients()[i], 2e-5)) << i;
  }
}

TEST_P(Gpt2Test, LossAloneIsWithoutDropoutAndChangesNoGradient) {
  const auto model = Model(config_);
  const auto without = Model(SmallConfig());
  EXPECT_EQ(model->Loss(batch_), without->ForwardBackward(batch_, place_));
  EXPECT_TRUE(std::ranges::all_of(model->gradients(), [](float g) { return g == 0; }));
}

INSTANTIATE_TEST_SUITE_P(All, Gpt2Test,
                         ::testing::Values(Case{"Whole", 3, 5, 0}, Case{"Dropout", 3, 5, 0.3}, Case{"Short", 2, 3, 0.3},
                                           Case{"OneToken", 4, 1, 0}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Gpt2, NothingInGivesNothing) {
  const auto model = Model(SmallConfig());
  EXPECT_EQ(model->ForwardBackward({.tokens = {}, .targets = {}, .length = 5}, {}), 0);
  EXPECT_EQ(model->Loss({.tokens = {}, .targets = {}, .length = 5}), 0);
}

// Each element once, and what was told of is final.
TEST(Gpt2, GradientsAreReadyOnceEach) {
  const v1::Gpt2 config = SmallConfig(0.3);
  const std::vector<uint16_t> tokens = Tokens(1, 15, config.vocabulary());
  std::vector<uint64_t> order;
  for (const size_t n : {15, 0}) {
    const auto model = Model(config);
    std::vector<float> seen(model->gradients().size());
    std::vector<int> times(seen.size());
    std::vector<uint64_t> begins;
    const std::span<const uint16_t> batch = std::span(tokens).first(n);
    model->ForwardBackward({.tokens = batch, .targets = batch, .length = 5}, {}, [&](const Slice& ready) {
      begins.push_back(ready.begin);
      for (uint64_t i = ready.begin; i < ready.end; ++i) seen[i] = model->gradients()[i], ++times[i];
    });
    EXPECT_TRUE(std::ranges::equal(seen, model->gradients()));
    EXPECT_TRUE(std::ranges::all_of(times, [](int t) { return t == 1; }));
    if (order.empty()) order = begins;
    EXPECT_EQ(begins, order);
  }
}

TEST(Gpt2, NextLogitsAreThoseBehindTheLastToken) {
  const v1::Gpt2 config = SmallConfig(0.5);
  const auto model = Model(config);
  const std::vector<uint16_t> tokens = Tokens(9, 4, config.vocabulary());
  std::vector<float> logits(config.vocabulary());
  model->NextLogits(tokens, logits);
  const auto expected = testing::Gpt2Logits(model->parameters(), ToDouble(model->weights()), config.heads(), tokens, 0,
                                            FactorsOf(SmallConfig(), 0));
  for (size_t v = 0; v < logits.size(); ++v) EXPECT_TRUE(Near(logits[v], expected.back()[v], 1e-5)) << v;
}

TEST(Gpt2, ParametersHaveTheHubsNamesAndThoseOfTwoExtentsComeFirst) {
  v1::Gpt2 config;  // The 124M model.
  const Gpt2Layout layout(config);
  uint64_t size = 0;
  bool vectors = false;
  std::set<std::string> names;
  for (const Parameter& parameter : layout.parameters.parameters()) {
    EXPECT_TRUE(names.insert(parameter.name).second);
    EXPECT_EQ(parameter.offset, size);
    if (parameter.shape.size() == 1 && !vectors) {
      vectors = true;
      EXPECT_EQ(layout.decayed, size);
    }
    EXPECT_EQ(parameter.shape.size(), vectors ? 1u : 2u) << parameter.name;
    size += parameter.size;
  }
  EXPECT_EQ(size, 124439808u);  // As published.
  EXPECT_EQ(names.size(), 4 + 12 * 12);
  for (const char* name : {"wte.weight", "wpe.weight", "h.11.attn.c_attn.weight", "h.0.attn.c_proj.bias",
                           "h.3.mlp.c_fc.weight", "h.3.mlp.c_proj.bias", "h.7.ln_2.weight", "ln_f.bias"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

// 12 layers of 12 x 768^2 weights and the head's 50,257 x 768, 6 operations each. Attention: 12 layers, 3 passes, two
// products of 768 terms with 512 keys in the mean.
TEST(Gpt2, OperationsOfATokenAreThoseOfItsProducts) {
  EXPECT_EQ(Gpt2FlopsPerToken(v1::Gpt2()), 6 * (84934656.0 + 38597376.0) + 12 * 3 * 2 * 2 * 768 * 512.0);
}

TEST(Gpt2, FreshWeightsHaveTheirDeviations) {
  v1::Gpt2 config = SmallConfig();
  config.set_width(64);
  config.set_layers(8);
  const auto model = MakeGpt2(config, TrainConfig::NOTHING, 1);
  for (const Parameter& parameter : model->parameters()) {
    if (parameter.size < 4096) continue;
    double squares = 0;
    for (const float w : model->weights().subspan(parameter.offset, parameter.size)) squares += w * w;
    const double expected = parameter.name.find("c_proj") == std::string::npos ? 0.02 : 0.02 / std::sqrt(16.0);
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(parameter.size)) / expected, 1, 0.05) << parameter.name;
  }
  // With weights so small every token is about as likely as another.
  const std::vector<uint16_t> tokens = {1, 2, 3, 4, 5}, targets = {6, 7, 8, 9, 10};
  EXPECT_NEAR(model->Loss({.tokens = tokens, .targets = targets, .length = 5}) / 5, std::log(11.0), 0.3);
}

}  // namespace
}  // namespace sparrow
