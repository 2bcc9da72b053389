#ifndef SPARROW_WORKER_SIDE_THREAD_H_
#define SPARROW_WORKER_SIDE_THREAD_H_

#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/bounded_queue.h"
#include "base/check.h"
#include "base/parallel.h"

namespace sparrow {

// Does one thing at a time beside its owner, on a thread of its own that uses up to so many cores. With 0 cores there
// is no thread: things are done at once, by the owner. For one owner's thread.
class SideThread {
 public:
  explicit SideThread(int cores) {
    if (cores == 0) return;
    thread_ = std::thread([this, cores] {
      UseThreads(cores);
      Run();
    });
  }
  ~SideThread() {  // What was begun is done first.
    if (!thread_.joinable()) return;
    work_.Close();
    thread_.join();
  }

  // REQUIRES: what was begun before has been waited for.
  void Start(std::function<void()> work) {
    if (!thread_.joinable()) return work();
    {
      absl::MutexLock lock(&mu_);
      CHECK(!busy_);
      busy_ = true;
    }
    work_.Push(std::move(work));
  }
  // Returns when what was begun is done.
  void Wait() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](bool* busy) { return !*busy; }, &busy_));
  }

 private:
  void Run() {
    while (const std::optional<std::function<void()>> work = work_.Pop()) {
      (*work)();
      absl::MutexLock lock(&mu_);
      busy_ = false;
    }
  }

  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  BoundedQueue<std::function<void()>> work_{1};
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_SIDE_THREAD_H_
