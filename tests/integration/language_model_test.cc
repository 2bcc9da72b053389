// Language models as a user trains them: text to tokens to a model, on daemons as in one process, and with a worker
// that is killed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/child_process.h"
#include "tests/support/local_cluster.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training_run.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = "deploy/jobs/shakespeare.textproto";

// Writes DIRECTORY/shakespeare.bin.
void Tokenize(const std::string& text, const TemporaryDirectory& directory) {
  const RunResult tokenize = RunProgram({ProgramPath("sparrowctl"), "data", "tokenize", "--characters", "--input", text,
                                         "--out", directory.File("shakespeare.bin")});
  ASSERT_EQ(tokenize.status, 0) << tokenize.err;
}

// The full figure, 2,000 steps, is in bench/results; this is its beginning.
TEST(LanguageModel, TinyShakespeareIsLearnt) {
#ifndef NDEBUG
  GTEST_SKIP() << "The release build runs this";
#endif
  const std::string text = absl::StrCat(SPARROW_SOURCE_DIR, "/../shared/data/tinyshakespeare_input.txt");
  if (!std::filesystem::exists(text)) GTEST_SKIP() << "TINY SHAKESPEARE IS NOT HERE: " << text;
  const TemporaryDirectory data;
  Tokenize(text, data);
  const TrainingRun run = Train({.job = kJob,
                                 .flags = {},
                                 .sets = {"train.steps_max=120", "eval.every_steps=0", "train.loss_every_steps=1"},
                                 .coordinator = "",
                                 .data_root = data.path()});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.summary["rows_trained"], 120 * 12 * 64);
  EXPECT_EQ(run.summary["eval_rows"], 111488);  // 1,742 windows of the last 111,539 tokens, one short of their targets.
  EXPECT_NEAR(run.losses.front(), std::log(65.0), 0.2);
  // By their frequencies alone letters have 3.3 nats, by the letter before 2.45.
  EXPECT_LT(run.summary["eval_loss"].get<double>(), 2.65);
  EXPECT_THAT(run.out, HasSubstr("tokens/s"));
  EXPECT_THAT(run.out, HasSubstr("validation loss"));
}

// A model that has learnt one sentence by heart says it.
TEST(LanguageModel, SamplesWhatItHasLearnt) {
  const TemporaryDirectory data;
  std::ofstream text(data.File("text.txt"));
  for (int i = 0; i < 400; ++i) text << "The sparrow is a small bird. ";
  text.close();
  Tokenize(data.File("text.txt"), data);
  const TrainingRun run =
      Train({.job = kJob,
             .flags = {},
             .sets = {"train.steps_max=300", "train.epochs=100", "eval.every_steps=0", "model.gpt2.layers=1",
                      "model.gpt2.width=32", "model.gpt2.context=32", "model.gpt2.vocabulary=64",
                      "train.schedule.warmup_steps=10", "train.optimizer.learning_rate=0.01"},
             .coordinator = "",
             .data_root = data.path(),
             .checkpoint_root = data.File("checkpoints")});
  ASSERT_EQ(run.status, 0) << run.err;
  const std::string checkpoint = run.summary["checkpoint"];
  const auto sample = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {ProgramPath("sparrowctl"), "sample", checkpoint, "--tokenizer",
                                        data.File("shakespeare.bin.tokenizer.json")};
    command.insert(command.end(), more.begin(), more.end());
    return RunProgram(command);
  };
  const RunResult said = sample({"--prompt", "The s", "--tokens", "53", "--temperature", "0"});
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_EQ(said.out, "The sparrow is a small bird. The sparrow is a small bird. \n");

  const std::vector<std::string> hot = {"--tokens", "200", "--temperature", "5"};
  const RunResult one = sample(hot), again = sample(hot);
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out.size(), 201u);  // A byte a character, and the end of the line.
  EXPECT_EQ(one.out, again.out);
  EXPECT_NE(sample({"--tokens", "200", "--temperature", "5", "--seed", "2"}).out, one.out);

  const RunResult strange = sample({"--prompt", "\xc3\xa9"});
  EXPECT_NE(strange.status, 0);
  EXPECT_THAT(strange.err, HasSubstr("--prompt"));
}

class LanguageModelCluster : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(data_.File("text.txt"));
    for (int i = 0; i < 3000; ++i) text << "The " << i * 7919 % 1000 << " sparrows of " << i % 13 << " hedges.\n";
    text.close();
    Tokenize(data_.File("text.txt"), data_);
  }

  TrainingRun TrainHere(const std::string& coordinator, const std::vector<std::string>& more = {}) {
    std::vector<std::string> sets = {"train.steps_max=30",     "train.loss_every_steps=1", "eval.every_steps=10",
                                     "model.gpt2.layers=2",    "model.gpt2.width=32",      "model.gpt2.context=32",
                                     "model.gpt2.dropout=0.1", "train.batch_size=10",      "model.gpt2.vocabulary=64"};
    sets.insert(sets.end(), more.begin(), more.end());
    return Train({.job = kJob,
                  .flags = {},
                  .sets = sets,
                  .coordinator = coordinator,
                  .data_root = coordinator.empty() ? data_.path() : ""});
  }

  TemporaryDirectory data_;
};

// No server is there, and none is needed.
TEST_F(LanguageModelCluster, DaemonsTrainWhatOneProcessTrains) {
  const TrainingRun expected = TrainHere("");
  ASSERT_EQ(expected.status, 0) << expected.err;
  ASSERT_EQ(expected.losses.size(), 30u);
  const std::pair<int, const char*> cases[] = {{2, "NONE"}, {3, "OPTIMIZER_STATE"}, {4, "GRADIENTS"}};
  for (const auto& [workers, zero] : cases) {
    LocalCluster cluster({.servers = 0, .workers = workers, .data_root = data_.path()});
    const TrainingRun run =
        TrainHere(cluster.coordinator(), {absl::StrCat("train.zero=", zero), "train.check_weights_every_steps=1"});
    ASSERT_EQ(run.status, 0) << run.err;
    ASSERT_EQ(run.losses.size(), expected.losses.size());
    for (size_t i = 0; i < run.losses.size(); ++i) {
      EXPECT_NEAR(run.losses[i], expected.losses[i], 1e-5 * expected.losses[i]) << workers << " workers, step " << i;
    }
    EXPECT_NEAR(run.summary["eval_loss"].get<double>(), expected.summary["eval_loss"].get<double>(), 3e-5);
    EXPECT_EQ(run.summary["workers"], workers);
  }
}

// One that is killed closes its connections; one that stands still does not.
class LanguageModelLoss : public LanguageModelCluster, public ::testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Signals, LanguageModelLoss, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& info) { return info.param == SIGKILL ? "Kill" : "Stop"; });

TEST_P(LanguageModelLoss, AWorkerThatIsLostInAStepIsNamedAndTheOthersGoOn) {
  LocalCluster cluster({.servers = 0, .workers = 2, .data_root = data_.path()});
  ChildProcess watch({ProgramPath("sparrowctl"), "submit", absl::StrCat(SPARROW_SOURCE_DIR, "/", kJob), "--coordinator",
                      cluster.coordinator(), "--watch", "--set", "train.epochs=1000", "--set", "train.steps_max=100000",
                      "--set", "model.gpt2.vocabulary=64"});
  ASSERT_TRUE(watch.WaitForOutput("step ", absl::Seconds(60)).has_value()) << watch.Stdout() << watch.Stderr();
  const absl::Time lost = absl::Now();
  cluster.workers()[1]->Signal(GetParam());
  const std::optional<int> status = watch.Wait(absl::Seconds(40));
  ASSERT_TRUE(status.has_value()) << watch.Stdout();
  EXPECT_LT(absl::Now() - lost, absl::Seconds(30));
  EXPECT_NE(*status, 0);
  EXPECT_THAT(watch.Stdout() + watch.Stderr(), HasSubstr("worker-2"));
  const TrainingRun next = TrainHere(cluster.coordinator());
  EXPECT_EQ(next.status, 0) << next.err;
  EXPECT_EQ(next.summary["workers"], 1);
}

}  // namespace
}  // namespace sparrow
