#ifndef SPARROW_BASE_INTERRUPT_H_
#define SPARROW_BASE_INTERRUPT_H_

// What Ctrl-C or SIGTERM does at the moment: main() gives every signal to one Interrupt (base/shutdown.h), and what
// runs says what is to happen meanwhile.

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace sparrow {

// Thread-safe.
class Interrupt {
 public:
  // Signal `signal` has come. The action, if there is one, runs on this thread.
  void Notify(int signal) {
    absl::MutexLock lock(&mu_);
    signal_ = signal;
    if (action_) action_(signal);
  }

  // From now on `action` runs at a signal; at once if one came before. Empty: nothing runs, and none is running once
  // this has returned.
  void SetAction(std::function<void(int signal)> action) {
    absl::MutexLock lock(&mu_);
    action_ = std::move(action);
    if (signal_ != 0 && action_) action_(signal_);
  }

  // The signal that came, or 0.
  int signal() const {
    absl::MutexLock lock(&mu_);
    return signal_;
  }

 private:
  mutable absl::Mutex mu_;  // Held while an action runs.
  std::function<void(int)> action_ ABSL_GUARDED_BY(mu_);
  int signal_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_INTERRUPT_H_
