#include "base/shutdown.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/check.h"

namespace sparrow {
namespace {

std::atomic<bool> installed{false};
// Release/acquire by default order: a reader that sees the signal may act on what happened before it.
std::atomic<int> first_signal{0};

}  // namespace

const absl::Notification* InstallShutdownHandler(std::function<void(int)> on_first, absl::Duration patience) {
  CHECK(!installed.exchange(true)) << "one handler a process";
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);

  auto* first = new absl::Notification;  // Lives as long as the process, as the thread does.
  std::thread([signals, first, patience, on_first = std::move(on_first)] {
    absl::Time first_at = absl::InfinitePast();
    for (;;) {
      int signal = 0;
      if (sigwait(&signals, &signal) != 0) continue;
      if (first_signal.load() != 0) {
        if (absl::Now() - first_at < patience) continue;
        _exit(128 + signal);
      }
      first_at = absl::Now();
      first_signal.store(signal);
      first->Notify();
      // On a thread of its own, so that a second signal is heard while the first is acted upon.
      if (on_first) std::thread([on_first, signal] { on_first(signal); }).detach();
    }
  }).detach();
  return first;
}

int ShutdownSignal() { return first_signal.load(); }

}  // namespace sparrow
