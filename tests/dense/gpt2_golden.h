#ifndef SPARROW_TESTS_DENSE_GPT2_GOLDEN_H_
#define SPARROW_TESTS_DENSE_GPT2_GOLDEN_H_

// Ten steps of a small GPT-2, as the hub's model in PyTorch does them (tests/golden/gpt2_golden.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/random.h"
#include "dense/language_model.h"
#include "dense/parameters.h"
#include "sparrow/v1/table.pb.h"

namespace sparrow::testing {

class Gpt2Golden {
 public:
  // Of this project's directory.
  explicit Gpt2Golden(const std::string& source_dir)
      : json_(nlohmann::json::parse(ReadFile(source_dir + "/tests/golden/gpt2_golden.json").value())) {
    const nlohmann::json& c = json_["config"];
    config_.set_layers(c["layers"]);
    config_.set_heads(c["heads"]);
    config_.set_width(c["width"]);
    config_.set_context(c["context"]);
    config_.set_vocabulary(c["vocabulary"]);
  }

  const nlohmann::json& operator[](const char* key) const { return json_[key]; }
  const v1::Gpt2& config() const { return config_; }
  size_t steps() const { return json_["losses"].size(); }

  std::unique_ptr<LanguageModel> Model() const {
    return MakeGpt2(config_, v1::TrainConfig::NOTHING, json_["train"]["seed"]);
  }
  v1::OptimizerConfig Optimizer() const {
    const nlohmann::json& train = json_["train"];
    v1::OptimizerConfig optimizer;
    optimizer.set_learning_rate(train["learning_rate"]);
    optimizer.mutable_adamw()->set_beta1(train["beta1"]);
    optimizer.mutable_adamw()->set_beta2(train["beta2"]);
    optimizer.mutable_adamw()->set_eps(train["eps"]);
    optimizer.mutable_adamw()->set_weight_decay(train["weight_decay"]);
    return optimizer;
  }
  double clip_norm() const { return json_["train"]["clip_norm"]; }

  // Valid until the next call.
  Sequences Batch(size_t step) {
    const uint64_t vocabulary = config_.vocabulary();
    tokens_.clear();
    targets_.clear();
    for (size_t s = 0; s < json_["train"]["sequences"].get<size_t>(); ++s) {
      uint64_t at = RandomBits(1000 * step + s, 0) % vocabulary;
      for (uint64_t t = 0; t < config_.context(); ++t) {
        tokens_.push_back(static_cast<uint16_t>(at));
        at = (at + 1 + RandomBits(1000 * step + s, t + 1) % 3) % vocabulary;
        targets_.push_back(static_cast<uint16_t>(at));
      }
    }
    return {.tokens = tokens_, .targets = targets_, .length = config_.context()};
  }

  // Weights "before" or "after" the ten steps, or the "gradients" of the first step's mean loss, before clipping:
  // elements, their mean and their mean square differ by at most `tolerance`, relative to what is usual in the tensor
  // (the root of its mean square, and at least a tenth of that of the whole model).
  void ExpectNear(const LanguageModel& model, std::span<const float> values, const char* what, double tolerance) const {
    const nlohmann::json& expected = json_[what];
    ASSERT_EQ(expected.size(), model.parameters().size());
    const double usual_anywhere = RootMeanSquare(values);
    double worst = 0;
    std::string where = "nowhere";
    const auto compare = [&](const std::string& name, double actual, double golden, double scale) {
      double difference = std::abs(actual - golden) / scale;
      if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
      if (difference <= worst) return;
      worst = difference;
      where = absl::StrCat(name, ": ", actual, ", not ", golden);
    };
    for (const Parameter& parameter : model.parameters()) {
      const std::string& name = parameter.name;
      ASSERT_TRUE(expected.contains(name)) << name;
      const nlohmann::json& golden = expected[name];
      EXPECT_EQ(parameter.shape, golden["shape"].get<std::vector<uint64_t>>()) << name;
      const std::span<const float> elements = ElementsOf(parameter, values);
      const double usual = std::max(RootMeanSquare(elements), usual_anywhere / 10);
      const auto first = golden["first"].get<std::vector<double>>();
      const auto last = golden["last"].get<std::vector<double>>();
      for (size_t i = 0; i < first.size(); ++i) {
        compare(name, elements[i], first[i], usual);
        compare(name, elements[elements.size() - last.size() + i], last[i], usual);
      }
      double sum = 0, squares = 0;
      for (const double element : elements) sum += element, squares += element * element;
      const double size = static_cast<double>(elements.size());
      compare(absl::StrCat("the mean of ", name), sum / size, golden["sum"].get<double>() / size, usual);
      compare(absl::StrCat("the mean square of ", name), squares / size, golden["sum_of_squares"].get<double>() / size,
              2 * usual * usual);
    }
    std::printf("%s: within %.2g, the worst %s\n", what, worst, where.c_str());
    EXPECT_LE(worst, tolerance) << what << ": the worst is " << where;
  }

 private:
  static double RootMeanSquare(std::span<const float> values) {
    double squares = 0;
    for (const double value : values) squares += value * value;
    return std::sqrt(squares / static_cast<double>(values.size()));
  }

  nlohmann::json json_;
  v1::Gpt2 config_;
  std::vector<uint16_t> tokens_, targets_;
};

}  // namespace sparrow::testing

#endif  // SPARROW_TESTS_DENSE_GPT2_GOLDEN_H_
