// sparrow-worker as a program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/time/clock.h"
#include "base/file.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(WorkerProgram, HelpNamesItsFlags) {
  const RunResult run = RunProgram({ProgramPath("sparrow-worker"), "--help"});
  EXPECT_EQ(run.status, 0);
  for (const char* flag : {"--coordinator", "--device", "--data-root", "--checkpoint-root", "--host", "--metrics"}) {
    EXPECT_THAT(run.out, HasSubstr(flag));
  }
  EXPECT_THAT(run.out, testing::Not(HasSubstr("_root")));
}

TEST(WorkerProgram, WithoutACoordinatorItSaysSoInOneLineAndEnds) {
  const absl::Time start = absl::Now();
  const RunResult run = RunProgram({ProgramPath("sparrow-worker"), "--coordinator", "127.0.0.1:1"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST(WorkerProgram, ASignalWhileItConnectsEndsItWithStatusZero) {
  ChildProcess worker({ProgramPath("sparrow-worker"), "--coordinator", "127.0.0.1:1"});
  absl::SleepFor(absl::Milliseconds(500));
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(absl::Seconds(5)), 0);
}

TEST(WorkerProgram, AGpuThatIsNotThereIsRefusedBeforeItJoins) {
  const RunResult run =
      RunProgram({ProgramPath("sparrow-worker"), "--coordinator", "127.0.0.1:1", "--device", "cuda:99"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, AnyOf(HasSubstr("--device=cuda:99: no GPU can be used: "),
                             HasSubstr("--device=cuda:99: this machine has ")));
  const RunResult word =
      RunProgram({ProgramPath("sparrow-worker"), "--coordinator", "127.0.0.1:1", "--device", "cuda:x"});
  EXPECT_THAT(word.err, HasSubstr("--device=\"cuda:x\" is not a device; expected cpu, or cuda:N with N from 0"));
}

TEST(WorkerProgram, WrongFlagsAreNamed) {
  const RunResult unknown = RunProgram({ProgramPath("sparrow-worker"), "--coordinatr", "x"});
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean --coordinator?"));
  const RunResult missing = RunProgram({ProgramPath("sparrow-worker")});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("--coordinator is required"));
}

TEST(WorkerProgram, ARootThatIsNoDirectoryIsRefusedBeforeItJoins) {
  TemporaryDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.File("file"), "x").ok());
  const struct {
    std::string flag, path, says;
  } cases[] = {{"--data-root", directory.File("nope"), "no such directory"},
               {"--data-root", directory.File("file"), "is a file"},
               {"--checkpoint-root", directory.File("file"), "is a file"},
               {"--checkpoint-root", directory.File("file") + "/below", directory.File("file") + " is a file"}};
  for (const auto& each : cases) {
    // Nobody listens there: that would be the error if it went on to join.
    const RunResult run =
        RunProgram({ProgramPath("sparrow-worker"), "--coordinator", "127.0.0.1:1", each.flag, each.path});
    EXPECT_EQ(run.status, 1);
    EXPECT_THAT(run.err, HasSubstr(each.flag + " " + each.path + ": "));
    EXPECT_THAT(run.err, HasSubstr(each.says));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

class JoinedWorker : public ::testing::TestWithParam<int> {};

TEST_P(JoinedWorker, SaysWhereAndAsWhatAndEndsOnASignalWithStatusZero) {
  TemporaryDirectory directory;
  ChildProcess coordinator(
      {ProgramPath("sparrow-coordinator"), "--listen", "127.0.0.1:0", "--state", directory.File("state")});
  const auto address = coordinator.WaitForOutput("sparrow-coordinator listening on ");
  ASSERT_TRUE(address.has_value()) << coordinator.Stderr();
  ChildProcess worker({ProgramPath("sparrow-worker"), "--coordinator", *address, "--metrics", "127.0.0.1:0"});
  const auto joined = worker.WaitForOutput("sparrow-worker joined ");
  ASSERT_TRUE(joined.has_value()) << worker.Stderr();
  EXPECT_EQ(*joined, *address + " as worker-1");
  const auto metrics = worker.WaitForOutput("metrics on ");
  ASSERT_TRUE(metrics.has_value());

  const RunResult clash = RunProgram({ProgramPath("sparrow-worker"), "--coordinator", *address, "--metrics", *metrics});
  EXPECT_EQ(clash.status, 1);
  EXPECT_THAT(clash.err, HasSubstr(*metrics));

  worker.Signal(GetParam());
  EXPECT_EQ(worker.Wait(absl::Seconds(10)), 0) << worker.Stderr();
}

INSTANTIATE_TEST_SUITE_P(Signals, JoinedWorker, ::testing::Values(SIGTERM, SIGINT));

}  // namespace
}  // namespace sparrow
