#include "dense/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/model_cases.h"

namespace sparrow {
namespace {

using testing::Derivative;
using ::testing::HasSubstr;
using testing::Near;
using testing::RandomFloats;
using testing::ToDouble;
using testing::Vector;

constexpr uint64_t kSeed = 4711;
constexpr double kTolerance = 1e-4;  // Some ten layers' worth of single-precision sums, summed over at most 257 rows.

class Models : public ::testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    auto model = MakeModel(ParseModel(GetParam().config), shape(), kSeed);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = std::move(model).value();
    // Every parameter off its initial value, and none 0.
    const std::vector<float> random = RandomFloats(kSeed, model_->weights().size());
    for (size_t i = 0; i < random.size(); ++i) model_->weights()[i] = 0.5f * random[i];
    for (uint32_t dim : GetParam().dims) sparse_columns_ += dim;
  }

  ModelShape shape() const { return {.dense_columns = GetParam().dense_columns, .feature_dims = GetParam().dims}; }

  void MakeInputs(size_t n) {
    dense_ = RandomFloats(kSeed + n, n * GetParam().dense_columns);
    sparse_ = RandomFloats(kSeed + n + 1, n * sparse_columns_);
    logit_gradients_ = RandomFloats(kSeed + n + 2, n);
  }

  double ReferenceLogit(const Vector& weights, const Vector& dense, const Vector& sparse, size_t row) const {
    const size_t columns = GetParam().dense_columns;
    const Vector d(dense.begin() + row * columns, dense.begin() + (row + 1) * columns);
    std::vector<Vector> features;
    size_t offset = row * sparse_columns_;
    for (uint32_t dim : GetParam().dims) {
      features.emplace_back(sparse.begin() + offset, sparse.begin() + offset + dim);
      offset += dim;
    }
    const v1::ModelConfig config = ParseModel(GetParam().config);
    if (config.has_dlrm()) {
      return testing::DlrmReference(model_->parameters(), weights, d, features,
                                    config.dlrm().bottom_output() == v1::Dlrm::RELU);
    }
    // Without a bottom the reference's MLP is the identity, as the model's.
    return testing::Dcnv2Reference(model_->parameters(), weights, d, features);
  }

  std::unique_ptr<Model> model_;
  size_t sparse_columns_ = 0;
  std::vector<float> dense_, sparse_, logit_gradients_;
};

TEST_P(Models, LogitsAndGradientsEqualTheDoubleReference) {
  for (size_t n : {1, 2, 31, 33, 257, 1}) {  // Growing and shrinking batches; one or several blocks of rows.
    MakeInputs(n);
    std::vector<float> logits(n), sparse_gradients(sparse_.size(), 9.0f);
    std::fill(model_->gradients().begin(), model_->gradients().end(), 9.0f);
    model_->Forward(dense_, sparse_, logits);
    model_->Backward(logit_gradients_, sparse_gradients);

    Vector weights = ToDouble(model_->weights());
    const Vector dense = ToDouble(dense_);
    Vector sparse = ToDouble(sparse_);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_TRUE(Near(logits[i], ReferenceLogit(weights, dense, sparse, i), kTolerance)) << n << " rows, row " << i;
    }
    const auto objective = [&] {
      double sum = 0;
      for (size_t i = 0; i < n; ++i) sum += logit_gradients_[i] * ReferenceLogit(weights, dense, sparse, i);
      return sum;
    };
    const double scale = std::sqrt(static_cast<double>(n));
    for (const Parameter& parameter : model_->parameters()) {
      for (uint64_t i = 0; i < parameter.size; i += std::max<uint64_t>(1, parameter.size / 3)) {
        const double expected = Derivative(objective, &weights[parameter.offset + i]);
        ASSERT_TRUE(Near(model_->gradients()[parameter.offset + i], expected, kTolerance, scale))
            << n << " rows, " << parameter.name << " " << i << ": " << model_->gradients()[parameter.offset + i]
            << " against " << expected;
      }
    }
    const size_t stride = std::max<size_t>(1, sparse.size() / 40);
    for (size_t i = 0; i < sparse.size(); i += stride) {
      const size_t row = i / sparse_columns_;
      const auto of_row = [&] { return logit_gradients_[row] * ReferenceLogit(weights, dense, sparse, row); };
      ASSERT_TRUE(Near(sparse_gradients[i], Derivative(of_row, &sparse[i]), kTolerance)) << n << " rows, sparse " << i;
    }
  }
}

TEST_P(Models, NoRowsAreLegalAndMakeZeroGradients) {
  for (int before : {0, 33}) {  // As the first batch, and after another.
    if (before > 0) {
      MakeInputs(before);
      std::vector<float> logits(before), sparse_gradients(sparse_.size());
      model_->Forward(dense_, sparse_, logits);
      model_->Backward(logit_gradients_, sparse_gradients);
    }
    std::fill(model_->gradients().begin(), model_->gradients().end(), 9.0f);
    model_->Forward({}, {}, {});
    model_->Backward({}, {});
    for (float gradient : model_->gradients()) ASSERT_EQ(gradient, 0.0f);
  }
}

TEST_P(Models, RepeatedPassesAreEqualBitForBit) {
  constexpr size_t kRows = 300;
  MakeInputs(kRows);
  std::vector<float> logits[2], sparse_gradients[2], gradients[2];
  for (int run = 0; run < 2; ++run) {
    logits[run].resize(kRows);
    sparse_gradients[run].resize(sparse_.size());
    model_->Forward(dense_, sparse_, logits[run]);
    model_->Backward(logit_gradients_, sparse_gradients[run]);
    gradients[run].assign(model_->gradients().begin(), model_->gradients().end());
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_EQ(sparse_gradients[0], sparse_gradients[1]);
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST_P(Models, ParametersTileTheFlatArray) {
  uint64_t offset = 0;
  for (const Parameter& parameter : model_->parameters()) {
    EXPECT_EQ(parameter.offset, offset) << parameter.name;
    uint64_t size = 1;
    for (uint64_t extent : parameter.shape) size *= extent;
    EXPECT_EQ(parameter.size, size) << parameter.name;
    offset += size;
  }
  EXPECT_EQ(model_->weights().size(), offset);
  EXPECT_EQ(model_->gradients().size(), offset);
}

TEST_P(Models, InitialWeightsAreAFunctionOfSeedNameAndElement) {
  auto model = MakeModel(ParseModel(GetParam().config), shape(), 99);
  ASSERT_TRUE(model.ok());
  for (const Parameter& parameter : (*model)->parameters()) {
    const bool weight = parameter.shape.size() == 2;
    double variance = weight ? 2.0 / static_cast<double>(parameter.shape[0] + parameter.shape[1])
                             : 1.0 / static_cast<double>(parameter.shape[0]);
    if (parameter.name.rfind("cross.", 0) == 0 && parameter.name.back() == 'b') variance = 0;
    const uint64_t seed = RandomBits(99, HashBytes(parameter.name));
    for (uint64_t i = 0; i < parameter.size; ++i) {
      ASSERT_EQ((*model)->weights()[parameter.offset + i],
                static_cast<float>(std::sqrt(variance) * RandomNormal(seed, i)))
          << parameter.name << " " << i;
    }
  }
}

TEST_P(Models, UniformFanInChangesTheLayersAndNothingElse) {
  v1::ModelConfig config = ParseModel(GetParam().config);
  auto normal = MakeModel(config, shape(), 99);
  config.set_layer_initializer(v1::ModelConfig::UNIFORM_FAN_IN);
  auto uniform = MakeModel(config, shape(), 99);
  ASSERT_TRUE(normal.ok() && uniform.ok());
  double bound = 0;  // Of the weights seen last; their bias comes next.
  for (const Parameter& parameter : (*uniform)->parameters()) {
    const bool layer = parameter.name.rfind("cross.", 0) != 0;
    if (layer && parameter.shape.size() == 2) bound = 1 / std::sqrt(static_cast<double>(parameter.shape[1]));
    const uint64_t seed = RandomBits(99, HashBytes(parameter.name));
    for (uint64_t i = 0; i < parameter.size; ++i) {
      const float expected = layer ? static_cast<float>(bound * (2 * RandomUniform(seed, i) - 1))
                                   : (*normal)->weights()[parameter.offset + i];
      ASSERT_EQ((*uniform)->weights()[parameter.offset + i], expected) << parameter.name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Models, ::testing::ValuesIn(kModelCases),
                         [](const ::testing::TestParamInfo<ModelCase>& info) { return info.param.name; });

std::vector<std::string> Names(const Model& model) {
  std::vector<std::string> names;
  for (const Parameter& parameter : model.parameters()) names.push_back(parameter.name);
  return names;
}

TEST(Model, ParametersHaveTheNamesAndShapesOfTheContract) {
  auto dlrm = MakeModel(ParseModel("dlrm { bottom: 5 bottom: 2 top: 3 top: 1 }"), {4, {2, 2}}, 1);
  ASSERT_TRUE(dlrm.ok());
  EXPECT_EQ(Names(**dlrm),
            (std::vector<std::string>{"bottom.0.weight", "bottom.0.bias", "bottom.1.weight", "bottom.1.bias",
                                      "top.0.weight", "top.0.bias", "top.1.weight", "top.1.bias"}));
  EXPECT_EQ((*dlrm)->parameters()[0].shape, (std::vector<uint64_t>{5, 4}));
  EXPECT_EQ((*dlrm)->parameters()[4].shape, (std::vector<uint64_t>{3, 2 + 3}));
  auto dcnv2 = MakeModel(ParseModel("dcnv2 { cross_layers: 1 cross_rank: 2 top: 1 }"), {0, {2, 3}}, 1);
  ASSERT_TRUE(dcnv2.ok());
  EXPECT_EQ(Names(**dcnv2),
            (std::vector<std::string>{"cross.0.v", "cross.0.w", "cross.0.b", "top.0.weight", "top.0.bias"}));
  EXPECT_EQ((*dcnv2)->parameters()[0].shape, (std::vector<uint64_t>{2, 5}));
  EXPECT_EQ((*dcnv2)->parameters()[1].shape, (std::vector<uint64_t>{5, 2}));
  EXPECT_EQ((*dcnv2)->parameters()[2].shape, (std::vector<uint64_t>{5}));
}

TEST(Model, TheReferenceModelsHaveTheirPublishedSizes) {
  const auto count = [](const std::string& config, const ModelShape& shape) {
    auto model = MakeModel(ParseModel(config), shape, 1);
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->weights().size();
  };
  const auto layer = [](uint64_t in, uint64_t out) { return in * out + out; };
  // 27 vectors of 16: 351 pairs and 16 numbers of the bottom are 367.
  EXPECT_EQ(count("dlrm { bottom: 512 bottom: 256 bottom: 64 bottom: 16 top: 512 top: 256 top: 1 }",
                  {13, std::vector<uint32_t>(26, 16)}),
            layer(13, 512) + layer(512, 256) + layer(256, 64) + layer(64, 16) + layer(367, 512) + layer(512, 256) +
                layer(256, 1));
}

TEST(Model, BadShapesAreNamedWithBothNumbers) {
  const auto message = [](const std::string& config, const ModelShape& shape) {
    const auto model = MakeModel(ParseModel(config), shape, 1);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(model.status().message());
  };
  EXPECT_THAT(message("", {1, {4}}), HasSubstr("model has no kind"));
  EXPECT_THAT(message("dlrm { bottom: 16 top: 1 }", {13, {16, 16, 32}}),
              HasSubstr("feature 2 has dimension 32, but feature 0 has 16"));
  EXPECT_THAT(message("dlrm { bottom: 64 top: 1 }", {13, {16, 16}}),
              HasSubstr("model.dlrm.bottom ends in 64, but the features have dimension 16"));
  EXPECT_THAT(message("dlrm { top: 1 }", {13, {16, 16}}), HasSubstr("bottom is empty, but the data has 13 dense"));
  EXPECT_THAT(message("dlrm { bottom: 16 top: 1 }", {0, {16, 16}}),
              HasSubstr("has 1 layers, but the data has no dense"));
  EXPECT_THAT(message("dlrm { top: 1 }", {0, {16}}), HasSubstr("nothing to interact"));
  EXPECT_THAT(message("dlrm { bottom: 16 }", {13, {16}}), HasSubstr("model.dlrm.top is empty"));
  EXPECT_THAT(message("dlrm { bottom: 16 top: 2 }", {13, {16}}), HasSubstr("model.dlrm.top ends in 2, expected 1"));
  EXPECT_THAT(message("dlrm { bottom: 0 bottom: 16 top: 1 }", {13, {16}}), HasSubstr("bottom: layer 0 has size 0"));
  EXPECT_THAT(message("dlrm { bottom: 16 top: 4000000000 top: 1 }", {13, {16}}),
              HasSubstr("top: layer 0 has size 4000000000, expected 1 to 1048576"));
  EXPECT_THAT(message("dlrm { bottom: 16 top: 1000000 top: 1000000 top: 1 }", {13, {16}}),
              HasSubstr("parameters, the limit is 4294967296"));
  EXPECT_THAT(message("dcnv2 { cross_rank: 0 top: 1 }", {0, {16}}), HasSubstr("model.dcnv2.cross_rank is 0"));
  EXPECT_THAT(message("dcnv2 { cross_layers: 0 top: 1 }", {0, {16}}), HasSubstr("model.dcnv2.cross_layers is 0"));
  EXPECT_THAT(message("dcnv2 { bottom: 4 top: 1 }", {0, {16}}), HasSubstr("model.dcnv2.bottom has 1 layers"));
  EXPECT_THAT(message("dcnv2 { top: 1 }", {0, {}}), HasSubstr("no dense columns and no features"));
}

}  // namespace
}  // namespace sparrow
