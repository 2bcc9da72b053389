// Programs that are killed, at any moment, and jobs that go on from their checkpoints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/integration/recovery_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 17;

class Recovery : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    data_ = new TemporaryDirectory;
    const RunResult gen =
        RunProgram({ProgramPath("sparrowctl"), "gen", "clicks", "--rows", "52000", "--out", data_->File("clicks.tsv"),
                    "--test-rows", "2000", "--test-out", data_->File("clicks.test.tsv"), "--seed", "5"});
    ASSERT_EQ(gen.status, 0) << gen.err;
    WriteText(*data_);
  }
  static void TearDownTestSuite() { delete data_; }

  static RecoveredJob Clicks(const std::vector<std::string>& more) {
    RecoveredJob job{.file = "deploy/jobs/quickstart.textproto",
                     .sets = {"train.loss_every_steps=1", "train.batch_size=64", "train.epochs=10", "cluster.workers=2",
                              "cluster.servers=2"}};
    job.sets.insert(job.sets.end(), more.begin(), more.end());
    return job;
  }
  // A moment of the steps between two checkpoints, and of the checkpoints too.
  absl::Duration SomeTime() { return absl::Milliseconds(std::uniform_int_distribution<int>(0, 300)(random_)); }

  static TemporaryDirectory* data_;
  std::mt19937_64 random_{kSeed};
};

TemporaryDirectory* Recovery::data_ = nullptr;

TEST_F(Recovery, AClickJobWhoseWorkerIsKilledEndsAsIfUndisturbed) {
  LocalCluster cluster({.servers = 2, .workers = 2, .data_root = data_->path()});
  ExpectRecovery(&cluster, SPARROW_SOURCE_DIR, Clicks({"train.steps_max=1500", "checkpoint.every_steps=100"}), "worker",
                 SomeTime());
}

TEST_F(Recovery, AClickJobWithHeldRowsWhoseServerIsKilledEndsAsIfUndisturbed) {
  LocalCluster cluster({.servers = 2, .workers = 2, .data_root = data_->path()});
  ExpectRecovery(&cluster, SPARROW_SOURCE_DIR,
                 Clicks({"train.steps_max=1200", "checkpoint.every_steps=100", "train.hot_rows.rows=1000"}), "server",
                 SomeTime());
}

TEST_F(Recovery, ALanguageModelWhoseWorkerIsKilledEndsAsIfUndisturbed) {
  LocalCluster cluster({.servers = 0, .workers = 2, .data_root = data_->path()});
  ExpectRecovery(
      &cluster, SPARROW_SOURCE_DIR,
      SmallLanguageModel({"train.steps_max=400", "model.gpt2.layers=2", "model.gpt2.width=32", "model.gpt2.context=32",
                          "train.batch_size=10", "checkpoint.every_steps=20", "train.zero=GRADIENTS"}),
      "worker", SomeTime());
}

// The whole of a job in one process, killed again and again, each time anywhere: in steps, between the files of a
// checkpoint, before its manifest, while an older one is removed.
TEST_F(Recovery, KilledAtAnyMomentThereIsAlwaysAWholeCheckpointToGoOnFrom) {
  constexpr int kRounds = 5;
  for (const bool tokens : {false, true}) {
    const RecoveredJob job =
        tokens ? SmallLanguageModel({"train.steps_max=200", "model.gpt2.layers=1", "model.gpt2.width=32",
                                     "model.gpt2.context=16", "train.batch_size=4", "checkpoint.every_steps=1"})
               : Clicks({"train.steps_max=200", "checkpoint.every_steps=1"});
    const TemporaryDirectory root;
    const auto run = [&](const std::string& checkpoints, const std::vector<std::string>& flags) {
      return Train({.job = job.file,
                    .flags = flags,
                    .sets = job.sets,
                    .coordinator = "",
                    .data_root = data_->path(),
                    .checkpoint_root = root.File(checkpoints)});
    };
    const TrainingRun whole = run("whole", {"--set", "checkpoint.every_steps=1000"});
    ASSERT_EQ(whole.status, 0) << whole.err;
    const std::string name = whole.summary["job"].get<std::string>() + "-job-1";

    std::vector<std::string> resume;  // Flags.
    int killed = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::string> arguments = {ProgramPath("sparrowctl"),
                                            "run",
                                            absl::StrCat(SPARROW_SOURCE_DIR, "/", job.file),
                                            "--data-root",
                                            data_->path(),
                                            "--checkpoint-root",
                                            root.File("killed")};
      for (const std::string& set : job.sets) arguments.insert(arguments.end(), {"--set", set});
      arguments.insert(arguments.end(), resume.begin(), resume.end());
      const std::string directory =
          absl::StrCat(root.File("killed"), "/", name, round == 0 ? "" : absl::StrCat(".", round + 1));
      ChildProcess process(arguments);
      const absl::Time deadline = absl::Now() + absl::Seconds(60);
      while (CompleteCheckpoints(directory) == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
      ASSERT_GT(CompleteCheckpoints(directory), 0) << process.Stderr();
      absl::SleepFor(SomeTime() / 3);
      process.Signal(SIGKILL);
      ASSERT_TRUE(process.Wait().has_value());
      if (*process.Wait() == 128 + SIGKILL) ++killed;
      ASSERT_GT(CompleteCheckpoints(directory), 0) << "seed " << kSeed << ", round " << round;
      resume = {"--resume", directory};
    }
    EXPECT_GT(killed, 0) << "every process had ended before it was to be killed";
    const TrainingRun rest = run("killed", resume);
    ASSERT_EQ(rest.status, 0) << rest.err;
    EXPECT_EQ(rest.summary["steps"], whole.summary["steps"]);
    EXPECT_TRUE(DenseOf(rest) == DenseOf(whole)) << "seed " << kSeed;
    EXPECT_EQ(rest.summary["eval_loss"], whole.summary["eval_loss"]);
    EXPECT_THAT(rest.err, ::testing::Not(HasSubstr("is passed over"))) << "what has a manifest is whole";
  }
}

}  // namespace
}  // namespace sparrow
