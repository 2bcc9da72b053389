#ifndef SPARROW_WORKER_STOP_SIGNAL_H_
#define SPARROW_WORKER_STOP_SIGNAL_H_

#include <functional>
#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sparrow {

// Tells a running task to stop, and ends what it waits for. Thread-safe.
class StopSignal {
 public:
  StopSignal() = default;
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Runs the action of every Scope, once. Later calls do nothing.
  void Stop() {
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    stopped_ = true;
    for (const std::function<void()>& action : actions_) action();
  }
  bool stopped() const {
    absl::MutexLock lock(&mu_);
    return stopped_;
  }
  // Waits for `time` or until stopped; returns stopped().
  bool WaitFor(absl::Duration time) const {
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&stopped_), time);
    return stopped_;
  }

  // While it lives, Stop runs `action`, on the thread that calls Stop; if stopped already, it runs at once. The action
  // must not use the signal, and does not run after the scope has ended.
  class Scope {
   public:
    Scope(StopSignal* signal, std::function<void()> action) : signal_(signal) {
      absl::MutexLock lock(&signal->mu_);
      if (signal->stopped_) action();
      place_ = signal->actions_.insert(signal->actions_.end(), std::move(action));
    }
    ~Scope() {
      absl::MutexLock lock(&signal_->mu_);
      signal_->actions_.erase(place_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StopSignal* const signal_;
    std::list<std::function<void()>>::iterator place_;
  };

 private:
  mutable absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::list<std::function<void()>> actions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_STOP_SIGNAL_H_
