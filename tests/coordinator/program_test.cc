// sparrow-coordinator as a user starts it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "coordinator/link.h"
#include "tests/coordinator/plane_fixture.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

class ProgramTest : public testing::Test {
 protected:
  std::vector<std::string> Arguments(const std::string& listen, const std::string& state,
                                     const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {program, "--listen", listen, "--state", state};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static std::string AddressOf(ChildProcess* child) {
    const std::optional<std::string> address = child->WaitForOutput("sparrow-coordinator listening on ");
    CHECK(address.has_value()) << child->Stderr();
    return *address;
  }

  const std::string program = ProgramPath("sparrow-coordinator");
  TemporaryDirectory directory;
};

// What the program has said in one line, apart from its log.
void ExpectRefusal(const RunResult& result, const std::string& named) {
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, testing::StartsWith("sparrow-coordinator: "));
  EXPECT_THAT(result.err, HasSubstr(named));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST_F(ProgramTest, EitherSignalEndsItWithStatus0InSecondsWithAWatcherAttached) {
  for (const int signal : {SIGTERM, SIGINT}) {
    ChildProcess child(Arguments("127.0.0.1:0", directory.File(absl::StrCat("state", signal))));
    const auto link = *CoordinatorLink::Connect(AddressOf(&child), absl::Seconds(20));
    const std::string job = link->Submit(Submission("first"))->job_id();
    absl::Notification watching;
    std::thread watcher([&] {
      bool first = true;
      const absl::Status status = link->WatchJob(job,
                                                 [&](const v1::JobStatus&) {
                                                   if (std::exchange(first, false)) watching.Notify();
                                                   return true;
                                                 },
                                                 {.timeout = absl::Milliseconds(100)});
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    });
    watching.WaitForNotification();
    const absl::Time start = absl::Now();
    child.Signal(signal);
    EXPECT_EQ(child.Wait(absl::Seconds(30)), 0) << child.Stderr();
    EXPECT_LT(absl::Now() - start, absl::Seconds(8));
    watcher.join();
  }
}

TEST_F(ProgramTest, APortInUseIsNamedAndItsOwnPortIsFreeAgainAtOnce) {
  ChildProcess first(Arguments("127.0.0.1:0", directory.File("first")));
  const std::string address = AddressOf(&first);
  ExpectRefusal(RunProgram(Arguments(address, directory.File("second"))), address);
  first.Signal(SIGTERM);
  ASSERT_EQ(first.Wait(), 0);
  ChildProcess again(Arguments(address, directory.File("first")));
  EXPECT_EQ(AddressOf(&again), address);
}

TEST_F(ProgramTest, AStateDirectoryInUseIsNamed) {
  ChildProcess first(Arguments("127.0.0.1:0", directory.File("state")));
  AddressOf(&first);
  ExpectRefusal(RunProgram(Arguments("127.0.0.1:0", directory.File("state"))), directory.File("state"));
}

TEST_F(ProgramTest, JobsSurviveEvenSigkill) {
  std::string job;
  {
    ChildProcess child(Arguments("127.0.0.1:0", directory.File("state")));
    const auto link = *CoordinatorLink::Connect(AddressOf(&child), absl::Seconds(20));
    job = link->Submit(Submission("first"))->job_id();
    child.Signal(SIGKILL);
    EXPECT_EQ(child.Wait(), 128 + SIGKILL);
  }
  ChildProcess child(Arguments("127.0.0.1:0", directory.File("state")));
  const auto link = *CoordinatorLink::Connect(AddressOf(&child), absl::Seconds(20));
  EXPECT_EQ(link->GetJob(job)->status().state(), v1::JobStatus::QUEUED);
}

TEST_F(ProgramTest, WrongFlagsAreRefusedInOneLine) {
  const std::string state = directory.File("state");
  ExpectRefusal(RunProgram(Arguments("127.0.0.1:0", state, {"--lease-ms", "0"})), "--lease-ms");
  ExpectRefusal(RunProgram(Arguments("127.0.0.1:0", state, {"--lease-ms=500", "--heartbeat-ms=400"})), "heartbeat");
  ExpectRefusal(RunProgram(Arguments("127.0.0.1:0", state, {"--nonsense"})), "--nonsense");
  ExpectRefusal(RunProgram(Arguments("127.0.0.1:0", state, {"stray"})), "stray");
  ExpectRefusal(RunProgram(Arguments("203.0.113.1:1", state)), "203.0.113.1:1");
  ExpectRefusal(RunProgram(Arguments("", state)), "--listen");
  ExpectRefusal(RunProgram(Arguments("127.0.0.1:99999", state)), "--listen=\"127.0.0.1:99999\": port \"99999\"");
  ExpectRefusal(RunProgram(Arguments("127.0.0.1:0", state, {"--metrics", "foo"})), "--metrics=\"foo\"");
}

TEST_F(ProgramTest, HelpNamesEveryFlagAndMetricsAreServed) {
  const RunResult help = RunProgram({program, "--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* flag : {"--listen", "--state", "--metrics", "--lease-ms", "--heartbeat-ms"}) {
    EXPECT_THAT(help.out, HasSubstr(flag));
  }
  ChildProcess child(Arguments("127.0.0.1:0", directory.File("state"), {"--metrics", "127.0.0.1:0"}));
  const std::optional<std::string> metrics = child.WaitForOutput("metrics on ");
  ASSERT_TRUE(metrics.has_value()) << child.Stderr();
  EXPECT_THAT(*metrics, testing::StartsWith("127.0.0.1:"));
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace sparrow
