// Two whole training runs of 50 steps against losses that PyTorch computed (tests/golden/README.md), through
// sparrowctl: input, tables, model, optimizers and schedule together.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "nlohmann/json.hpp"
#include "tests/support/training_run.h"

namespace sparrow {
namespace {

// float32 against float64, grown over 50 steps of training.
constexpr double kTolerance = 2e-4;

struct Shape {
  int servers;
  int workers;
};

class GoldenRun : public ::testing::TestWithParam<std::tuple<std::string, Shape>> {};

TEST_P(GoldenRun, LossesOfAllFiftyStepsAreThoseOfPyTorch) {
  const auto& [name, shape] = GetParam();
  const std::string golden_root = absl::StrCat(SPARROW_SOURCE_DIR, "/tests/golden");
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(golden_root, "/", name, "_golden.json"));
  ASSERT_TRUE(text.ok()) << text.status();
  const std::vector<double> expected = nlohmann::json::parse(*text)["losses"];
  ASSERT_EQ(expected.size(), 50u);

  const TrainingRun run =
      Train({.job = absl::StrCat("tests/golden/", name, ".textproto"),
             .flags = {"--servers", absl::StrCat(shape.servers), "--workers", absl::StrCat(shape.workers)},
             .sets = {},
             .coordinator = "",
             .data_root = golden_root});
  ASSERT_EQ(run.status, 0) << run.err;
  ASSERT_EQ(run.losses.size(), expected.size());
  for (size_t step = 0; step < expected.size(); ++step) {
    ASSERT_NEAR(run.losses[step], expected[step], kTolerance * expected[step]) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenRun,
                         testing::Combine(testing::Values("dlrm", "dcnv2"), testing::Values(Shape{1, 1}, Shape{3, 2})),
                         [](const testing::TestParamInfo<GoldenRun::ParamType>& info) {
                           const Shape shape = std::get<1>(info.param);
                           return absl::StrCat(std::get<0>(info.param), shape.servers, "Servers", shape.workers,
                                               "Workers");
                         });

}  // namespace
}  // namespace sparrow
