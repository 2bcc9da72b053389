#ifndef SPARROW_BASE_TASK_POOL_H_
#define SPARROW_BASE_TASK_POOL_H_

// Threads that help whoever has many small tasks to do at the moment. Unlike ParallelFor, which waits for every thread
// of its team, a call waits for nobody who has not begun: it costs little beside other work on the same cores, and
// tasks may differ in length.

#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace sparrow {

// Thread-safe: the helpers go to the calls under way in the order in which these began.
class TaskPool {
 public:
  // The helpers start with the first call that wants some. REQUIRES: helpers >= 0.
  explicit TaskPool(int helpers) : helpers_max_(helpers) {}
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // Calls body(task) for each task in [0, tasks) on the calling thread and on helpers, on `threads` threads at most;
  // returns when all have ended. Tasks are begun in their order. In a task ParallelFor has one thread, and Run, of any
  // pool, too, unless the calling thread does all tasks alone. What `body` did is seen after Run. REQUIRES: threads >
  // 0.
  void Run(size_t tasks, int threads, absl::FunctionRef<void(size_t task)> body);

 private:
  struct Call {
    absl::FunctionRef<void(size_t)> body;
    size_t tasks;
    int wanted = 0;               // Helpers that may still join. Guarded by the pool's mutex.
    std::atomic<int> inside{0};   // Helpers that have joined and not left. Release and acquire: what they did is seen.
    std::atomic<size_t> next{0};  // Relaxed: only hands out numbers.
  };

  void Help();
  static void Work(Call* call);

  const int helpers_max_;

  absl::Mutex mu_;
  absl::CondVar wanted_changed_;
  std::vector<Call*> calls_ ABSL_GUARDED_BY(mu_);  // That want helpers, in order of arrival.
  int sleeping_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> helpers_ ABSL_GUARDED_BY(mu_);

  // Calls in calls_. Relaxed: looked at by helpers that have nothing to do, before they take mu_.
  std::atomic<int> calling_{0};
};

}  // namespace sparrow

#endif  // SPARROW_BASE_TASK_POOL_H_
