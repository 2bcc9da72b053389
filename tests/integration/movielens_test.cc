// Real data: the movielens job reaches what PyTorch reaches on it (deploy/jobs/movielens.textproto says where the
// figures come from). Five seeds in an optimised build, one under sanitizers.

#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/support/training_run.h"

namespace sparrow {
namespace {

#ifdef NDEBUG
constexpr int kSeeds = 5;
#else
constexpr int kSeeds = 1;
#endif

TEST(Movielens, TestAucAndLoglossAreThoseOfPyTorchWithAnySeed) {
  const std::string root = absl::StrCat(SPARROW_SOURCE_DIR, "/../shared/data");
  if (!std::filesystem::exists(root + "/movielens_clicks.tsv.gz"))
    GTEST_SKIP() << "THE MOVIELENS LOG IS NOT HERE: " << root;
  double sum = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const TrainingRun run = Train({.job = "deploy/jobs/movielens.textproto",
                                   .flags = {},
                                   .sets = {absl::StrCat("train.seed=", seed)},
                                   .coordinator = "",
                                   .data_root = root});
    ASSERT_EQ(run.status, 0) << run.err;
    const nlohmann::json& summary = run.summary;
    EXPECT_EQ(summary["rows_trained"], 90752);
    const double auc = summary["eval_auc"];
    EXPECT_GE(auc, 0.69) << "seed " << seed;
    EXPECT_LE(auc, 0.735) << "seed " << seed;
    EXPECT_LT(summary["eval_loss"].get<double>(), 0.63) << "seed " << seed;
#ifdef NDEBUG
    EXPECT_LT(summary["train_seconds"].get<double>(), 60);
#endif
    sum += auc;
  }
  if (kSeeds == 5) {
    EXPECT_NEAR(sum / kSeeds, 0.713, 0.012);
  }
}

}  // namespace
}  // namespace sparrow
