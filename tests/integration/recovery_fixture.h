#ifndef SPARROW_TESTS_INTEGRATION_RECOVERY_FIXTURE_H_
#define SPARROW_TESTS_INTEGRATION_RECOVERY_FIXTURE_H_

// A job of daemons of which one is killed, and the same job gone on from its last checkpoint: it ends as the job that
// nobody disturbed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "tests/support/child_process.h"
#include "tests/support/local_cluster.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training_run.h"

namespace sparrow {

// So long a member may be silent before it is given up, the heartbeat that says so, and a slow machine.
inline constexpr absl::Duration kNoticedWithin = absl::Seconds(30);

// What is trained: a job file and settings.
struct RecoveredJob {
  std::string file;
  std::vector<std::string> sets;
};

inline RecoveredJob SmallLanguageModel(const std::vector<std::string>& more) {
  RecoveredJob job{.file = "deploy/jobs/shakespeare.textproto",
                   .sets = {"train.loss_every_steps=1", "eval.every_steps=0", "train.epochs=1000",
                            "model.gpt2.dropout=0.1", "model.gpt2.vocabulary=64", "cluster.workers=2"}};
  job.sets.insert(job.sets.end(), more.begin(), more.end());
  return job;
}

inline void WriteText(const TemporaryDirectory& data) {
  std::ofstream text(data.File("text.txt"));
  for (int i = 0; i < 3000; ++i) text << "The " << i * 7919 % 1000 << " sparrows of " << i % 13 << " hedges.\n";
  text.close();
  const RunResult tokenize = RunProgram({ProgramPath("sparrowctl"), "data", "tokenize", "--characters", "--input",
                                         data.File("text.txt"), "--out", data.File("shakespeare.bin")});
  ASSERT_EQ(tokenize.status, 0) << tokenize.err;
}

inline std::string DenseOf(const TrainingRun& run) {
  const auto bytes = ReadFile(run.summary["checkpoint"].get<std::string>() + "/dense.safetensors");
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or("");
}

// The complete checkpoints in a job's directory.
inline int CompleteCheckpoints(const std::string& directory) {
  int found = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (std::filesystem::exists(entry->path() / "MANIFEST.textproto", ignored)) ++found;
  }
  return found;
}

// Trains the job undisturbed; again, and kills a member of `kind` ("server", "worker"), the second of it, some time
// after the first checkpoint; and once more from there, with the member started anew. Returns the seconds from the kill
// to the end of the job. `project` is the project's root.
inline double ExpectRecovery(LocalCluster* cluster, const std::string& project, const RecoveredJob& job,
                             const std::string& kind, absl::Duration after) {
  const auto train = [&](const std::vector<std::string>& flags) {
    return Train(
        {.job = job.file, .flags = flags, .sets = job.sets, .coordinator = cluster->coordinator(), .data_root = ""});
  };
  const TrainingRun whole = train({});
  EXPECT_EQ(whole.status, 0) << whole.err;
  if (whole.status != 0) return 0;
  const std::string name = whole.summary["job"].get<std::string>();

  std::vector<std::string> arguments = {
      ProgramPath("sparrowctl"), "submit", absl::StrCat(project, "/", job.file), "--coordinator",
      cluster->coordinator(),    "--watch"};
  for (const std::string& set : job.sets) arguments.insert(arguments.end(), {"--set", set});
  ChildProcess watch(arguments);
  const std::string directory = absl::StrCat(cluster->checkpoints(), "/", name, "-job-2");
  const absl::Time deadline = absl::Now() + absl::Seconds(120);
  while (CompleteCheckpoints(directory) == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  absl::SleepFor(after);
  auto& members = kind == "server" ? cluster->servers() : cluster->workers();
  members[1]->Signal(SIGKILL);
  const absl::Time killed = absl::Now();
  const std::optional<int> status = watch.Wait(absl::Seconds(120));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - killed);
  EXPECT_EQ(status, 1) << "the job hangs, or had ended before: " << watch.Stdout();
  EXPECT_LT(absl::Seconds(seconds), kNoticedWithin);
  EXPECT_THAT(watch.Stderr(), ::testing::HasSubstr(kind + "-2"));
  EXPECT_THAT(watch.Stderr(), ::testing::HasSubstr("with --resume " + directory)) << "what to do is said";
  EXPECT_GT(CompleteCheckpoints(directory), 0);

  if (kind == "server") {
    cluster->RestartServer(1);
  } else {
    cluster->RestartWorker(1);
  }
  const TrainingRun rest = train({"--resume", directory});
  EXPECT_EQ(rest.status, 0) << rest.err;
  if (rest.status != 0) return 0;
  EXPECT_THAT(rest.summary["resumed_from"].get<std::string>(), ::testing::StartsWith(directory + "/step-"));
  EXPECT_EQ(rest.summary["steps"], whole.summary["steps"]);
  EXPECT_TRUE(DenseOf(rest) == DenseOf(whole)) << "weights and optimizer are equal bit for bit";
  EXPECT_EQ(rest.summary["eval_loss"], whole.summary["eval_loss"]);
  EXPECT_LT(rest.losses.size(), whole.losses.size());
  const size_t skipped = whole.losses.size() - std::min(rest.losses.size(), whole.losses.size());
  for (size_t i = 0; i < rest.losses.size() && skipped + i < whole.losses.size(); ++i) {
    EXPECT_EQ(rest.losses[i], whole.losses[skipped + i]) << "step " << skipped + i;
  }
  return seconds;
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_INTEGRATION_RECOVERY_FIXTURE_H_
