// Each case runs in a child of its own, since a process has one handler.

#include "base/shutdown.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "absl/synchronization/notification.h"

namespace sparrow {
namespace {

// Forks; `child` returns its exit status and gets an fd to write a byte to when it is ready. Then `parent` runs with
// the child's pid. Returns what waitpid says.
int InChild(const std::function<int(int ready)>& child, const std::function<void(pid_t)>& parent) {
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);  // Nothing hangs.
    _exit(child(ready[1]));
  }
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  parent(pid);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  close(ready[0]);
  close(ready[1]);
  return status;
}

void SayReady(int fd) { EXPECT_EQ(write(fd, "x", 1), 1); }

class ShutdownTest : public testing::TestWithParam<int> {};

TEST_P(ShutdownTest, TheFirstSignalNotifiesAndNamesItself) {
  const int status = InChild(
      [](int ready) {
        EXPECT_EQ(ShutdownSignal(), 0);
        const absl::Notification* first = InstallShutdownHandler({});
        SayReady(ready);
        first->WaitForNotification();
        return ShutdownSignal() == GetParam() ? 0 : 1;
      },
      [](pid_t pid) { kill(pid, GetParam()); });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(ShutdownTest, TheSecondSignalEndsTheProcessWhateverItDoes) {
  int acting[2];
  ASSERT_EQ(pipe(acting), 0);
  const int status = InChild(
      [&](int ready) {
        absl::Notification never;
        InstallShutdownHandler([&](int) {
          SayReady(acting[1]);
          never.WaitForNotification();  // An orderly end that hangs.
        });
        SayReady(ready);
        never.WaitForNotification();
        return 0;
      },
      [&](pid_t pid) {
        kill(pid, GetParam());
        char byte = 0;
        EXPECT_EQ(read(acting[0], &byte, 1), 1);
        kill(pid, GetParam());
      });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 128 + GetParam());
  close(acting[0]);
  close(acting[1]);
}

INSTANTIATE_TEST_SUITE_P(Signals, ShutdownTest, testing::Values(SIGINT, SIGTERM));

TEST(Shutdown, AClosedPipeIsAnErrorAndNotTheEnd) {
  const int status = InChild(
      [](int ready) {
        InstallShutdownHandler({});
        int broken[2];
        if (pipe(broken) != 0) return 1;
        close(broken[0]);
        const bool failed = write(broken[1], "x", 1) < 0;
        SayReady(ready);
        return failed ? 0 : 2;
      },
      [](pid_t) {});
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace sparrow
