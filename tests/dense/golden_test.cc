// The initial dense parameters of the golden runs (tests/golden), which another program computed from the definition.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "dense/model.h"
#include "dense/parameters.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {
namespace {

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, InitialParametersAreEqual) {
  const std::string prefix = std::string(SPARROW_SOURCE_DIR) + "/tests/golden/" + GetParam();
  v1::Job job;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(ReadFile(prefix + ".textproto").value(), &job));
  const nlohmann::json golden = nlohmann::json::parse(ReadFile(prefix + "_golden.json").value());
  ASSERT_EQ(golden["losses"].size(), golden["steps"].get<size_t>());

  ModelShape shape;
  for (const v1::Column& column : job.data().text().columns()) shape.dense_columns += column.has_dense() ? 1 : 0;
  for (const v1::FeatureConfig& feature : job.features()) {
    for (const v1::TableConfig& table : job.tables()) {
      if (table.name() == feature.table()) shape.feature_dims.push_back(table.dim());
    }
  }
  const auto model = MakeModel(job.model(), shape, job.train().seed());
  ASSERT_TRUE(model.ok()) << model.status();
  const std::span<const float> weights = std::as_const(**model).weights();
  const nlohmann::json& expected = golden["initial_parameters"];
  ASSERT_EQ((*model)->parameters().size(), expected.size());
  for (const Parameter& parameter : (*model)->parameters()) {
    ASSERT_TRUE(expected.contains(parameter.name)) << parameter.name;
    const nlohmann::json& value = expected[parameter.name];
    EXPECT_EQ(parameter.shape, value["shape"].get<std::vector<uint64_t>>()) << parameter.name;
    const std::span<const float> elements = ElementsOf(parameter, weights);
    const auto first = value["first"].get<std::vector<double>>();
    // Two mathematics libraries may round a logarithm or a cosine differently: a unit in the last place of a float.
    for (size_t i = 0; i < first.size(); ++i) EXPECT_FLOAT_EQ(elements[i], first[i]) << parameter.name << " " << i;
    double sum = 0, sum_of_squares = 0;
    for (double element : elements) sum += element, sum_of_squares += element * element;
    EXPECT_NEAR(sum, value["sum"].get<double>(), 1e-5) << parameter.name;
    EXPECT_NEAR(sum_of_squares, value["sum_of_squares"].get<double>(), 1e-5) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, Golden, ::testing::Values("dlrm", "dcnv2"));

}  // namespace
}  // namespace sparrow
