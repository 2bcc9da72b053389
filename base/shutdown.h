#ifndef SPARROW_BASE_SHUTDOWN_H_
#define SPARROW_BASE_SHUTDOWN_H_

// Ctrl-C and SIGTERM as an event that a main() waits for. A second signal, more than `patience` after the first, ends
// the process at once with status 128 + signal.

#include <functional>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace sparrow {

// Blocks SIGINT and SIGTERM in the calling thread and every thread it starts, ignores SIGPIPE, and starts the one
// thread that takes them. Call it first in main(), before any other thread exists; at most once a process. `on_first`
// runs on that thread at the first signal; it may be empty. The returned notification is notified before it and lives
// for ever. `patience` is for daemons, whose supervisor may repeat a signal while they end in order.
const absl::Notification* InstallShutdownHandler(std::function<void(int signal)> on_first,
                                                 absl::Duration patience = absl::ZeroDuration());

// The signal that came first, or 0. Async-signal-free, thread-safe.
int ShutdownSignal();

}  // namespace sparrow

#endif  // SPARROW_BASE_SHUTDOWN_H_
