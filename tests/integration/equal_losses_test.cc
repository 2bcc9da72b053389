// The same job at the same global batch gives the same loss at every step, whatever the numbers of servers and workers,
// in one process or in many. The reference is one process with one worker and one server.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/local_cluster.h"
#include "tests/support/training_run.h"

namespace sparrow {
namespace {

// One and two workers add the same numbers in the same order (worker/batch_model.h); only the sum of losses that they
// report is rounded.
constexpr double kToleranceOfTwo = 1e-6;
// With more, fp32 sums in another order. Row-wise Adagrad keeps that small for 200 steps. In the movielens job, whose
// Adagrad takes full steps from the first gradient on, it stays small until the last bit of a pre-activation first
// decides whether a unit is on; any fp32 training does that, sooner or later.
constexpr double kTolerance = 1e-4;
constexpr size_t kStepsBeforeChaos = 20;
constexpr size_t kSteps = 200;

struct JobCase {
  std::string name;
  std::string job;
  std::string data_root;  // Relative to the project's root.
  std::vector<std::string> sets;
  bool chaotic;
};

const JobCase kMovielens{"Movielens", "deploy/jobs/movielens.textproto", "../shared/data", {}, true};
// 20 rows short of 21 batches an epoch: the last batch of each leaves a worker less than its part, or nothing.
const JobCase kGolden{"Golden", "tests/golden/dlrm.textproto", "tests/golden", {"train.epochs=20"}, false};

struct Counts {
  int servers;
  int workers;
  bool processes;
};

class EqualLosses : public ::testing::TestWithParam<std::tuple<JobCase, Counts>> {};

TEST_P(EqualLosses, AtEveryStep) {
  const auto& [job, counts] = GetParam();
  const std::string root = absl::StrCat(SPARROW_SOURCE_DIR, "/", job.data_root);
  if (!std::filesystem::exists(root)) GTEST_SKIP() << "THE DATA IS NOT HERE: " << root;
  TrainingRunOptions options{.job = job.job, .flags = {}, .sets = job.sets, .coordinator = "", .data_root = root};
  options.sets.push_back(absl::StrCat("train.steps_max=", kSteps));
  options.sets.push_back("train.loss_every_steps=1");
  const TrainingRun reference = Train(options);
  ASSERT_EQ(reference.status, 0) << reference.err;
  ASSERT_EQ(reference.losses.size(), kSteps);

  TrainingRun run;
  if (counts.processes) {
    LocalCluster cluster({.servers = counts.servers, .workers = counts.workers, .data_root = root});
    options.coordinator = cluster.coordinator();
    run = Train(options);
  } else {
    options.flags = {"--servers", absl::StrCat(counts.servers), "--workers", absl::StrCat(counts.workers)};
    run = Train(options);
  }
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(run.summary["state"], "SUCCEEDED");
  EXPECT_EQ(run.summary["workers"], counts.workers);
  EXPECT_EQ(run.summary["servers"], counts.servers);
  EXPECT_EQ(run.summary["rows_trained"], reference.summary["rows_trained"]);
  ASSERT_EQ(run.losses.size(), kSteps);
  const bool exact = counts.workers <= 2;
  const double tolerance = exact ? kToleranceOfTwo : kTolerance;
  const size_t steps = exact || !job.chaotic ? kSteps : kStepsBeforeChaos;
  for (size_t step = 0; step < steps; ++step) {
    ASSERT_NEAR(run.losses[step], reference.losses[step], tolerance * reference.losses[step]) << "step " << step;
  }
  if (exact && !reference.summary["eval_loss"].is_null()) {
    EXPECT_NEAR(run.summary["eval_loss"].get<double>(), reference.summary["eval_loss"].get<double>(), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Cluster, EqualLosses,
                         testing::Combine(testing::Values(kMovielens, kGolden),
                                          testing::Values(Counts{1, 1, true}, Counts{2, 2, true}, Counts{3, 1, true},
                                                          Counts{5, 1, true}, Counts{3, 4, true}, Counts{2, 3, false})),
                         [](const testing::TestParamInfo<EqualLosses::ParamType>& info) {
                           const Counts counts = std::get<1>(info.param);
                           return absl::StrCat(std::get<0>(info.param).name, counts.servers, "Servers", counts.workers,
                                               "Workers", counts.processes ? "AsProcesses" : "InOneProcess");
                         });

// Pulls ahead are pulls of the same rows: with and without them, every loss is the same bits.
TEST(Prefetch, ChangesNoLoss) {
  const auto losses = [](const std::string& prefetch, int servers, int workers) {
    const TrainingRun run = Train({.job = kGolden.job,
                                   .flags = {"--servers", absl::StrCat(servers), "--workers", absl::StrCat(workers)},
                                   .sets = {"train.epochs=20", absl::StrCat("train.steps_max=", kSteps),
                                            "train.loss_every_steps=1", absl::StrCat("train.prefetch=", prefetch)},
                                   .coordinator = "",
                                   .data_root = absl::StrCat(SPARROW_SOURCE_DIR, "/", kGolden.data_root)});
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_EQ(run.losses.size(), kSteps);
    return run.losses;
  };
  for (const auto& [servers, workers] : {std::pair(1, 1), std::pair(3, 2)}) {
    EXPECT_EQ(losses("true", servers, workers), losses("false", servers, workers))
        << servers << " servers, " << workers << " workers";
  }
}

// Rows that workers hold themselves are updated as the servers would: every loss is the same bits, over the wire too.
class HotRows : public testing::TestWithParam<int> {};

TEST_P(HotRows, ChangeNoLoss) {
  const int workers = GetParam();
  TrainingRunOptions options{
      .job = kGolden.job,
      .flags = {"--workers", absl::StrCat(workers)},
      .sets = {"train.epochs=20", absl::StrCat("train.steps_max=", kSteps), "train.loss_every_steps=1"},
      .coordinator = "",
      .data_root = absl::StrCat(SPARROW_SOURCE_DIR, "/", kGolden.data_root)};
  const TrainingRun expected = Train(options);
  ASSERT_EQ(expected.status, 0) << expected.err;
  ASSERT_EQ(expected.losses.size(), kSteps);
  LocalCluster cluster({.servers = 2, .workers = workers, .data_root = options.data_root});
  for (const std::string budget : {"rows=0", "rows=1", "bytes=1000000"}) {
    TrainingRunOptions hot = options;
    hot.sets.push_back("train.hot_rows." + budget);
    EXPECT_EQ(Train(hot).losses, expected.losses) << budget;
    hot.flags.clear();
    hot.coordinator = cluster.coordinator();
    const TrainingRun run = Train(hot);
    EXPECT_EQ(run.status, 0) << run.out << run.err;
    EXPECT_EQ(run.losses, expected.losses) << budget << ", as processes";
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, HotRows, testing::Values(1, 3));

}  // namespace
}  // namespace sparrow
