// A click log whose best possible AUC is known: after one epoch of the quickstart job, the test AUC is within 0.01 of
// it.

#include <gtest/gtest.h>

#include "base/file.h"
#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training_run.h"

namespace sparrow {
namespace {

TEST(Planted, OneEpochReachesTheBestPossibleAuc) {
#ifndef NDEBUG
  GTEST_SKIP() << "A million rows take minutes under sanitizers; the release build runs this";
#endif
  const TemporaryDirectory out;
  const RunResult gen =
      RunProgram({ProgramPath("sparrowctl"), "gen", "clicks", "--rows", "1000000", "--out", out.File("clicks.tsv"),
                  "--test-rows", "100000", "--test-out", out.File("clicks.test.tsv"), "--seed", "77"},
                 absl::Minutes(3));
  ASSERT_EQ(gen.status, 0) << gen.err;
  const TrainingRun run = Train({.job = "deploy/jobs/quickstart.textproto",
                                 .flags = {},
                                 .sets = {},
                                 .coordinator = "",
                                 .data_root = out.path(),
                                 .timeout = absl::Minutes(8)});
  ASSERT_EQ(run.status, 0) << run.err;
  const nlohmann::json& summary = run.summary;
  const nlohmann::json truth = nlohmann::json::parse(*ReadFile(out.File("clicks.tsv.truth.json")));
  EXPECT_EQ(summary["rows_trained"], 1000000);
  const double best = truth["test_best_auc"];
  const double reached = summary["eval_auc"];
  EXPECT_GT(best, 0.7) << "a log that hardly can be learned shows nothing";
  EXPECT_LT(best - reached, 0.01) << "best possible " << best << ", reached " << reached;
  EXPECT_LT(reached, best + 0.003) << "no model is better than the truth, but for chance";
}

}  // namespace
}  // namespace sparrow
