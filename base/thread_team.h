#ifndef SPARROW_BASE_THREAD_TEAM_H_
#define SPARROW_BASE_THREAD_TEAM_H_

// A few threads that work on one thing after another beside those that compute: ParallelFor's are meant to have the
// cores for themselves.

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace sparrow {

// Run is for one thread at a time.
class ThreadTeam {
 public:
  // The caller of Run is one of the threads. REQUIRES: threads > 0.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(task, thread) for each task in [0, tasks); returns when all have ended. Tasks are begun in their order,
  // each by the next thread that is free; `thread`, in [0, threads()), is its own. What `body` did is seen after Run.
  void Run(size_t tasks, absl::FunctionRef<void(size_t task, int thread)> body);

 private:
  using Body = absl::FunctionRef<void(size_t, int)>;

  void Help(int thread);
  void Work(const Body& body, size_t tasks, int thread);

  absl::Mutex mu_;
  absl::CondVar changed_;
  const Body* body_ ABSL_GUARDED_BY(mu_) = nullptr;  // Null: there is nothing to do, or nobody is needed any more.
  size_t tasks_ ABSL_GUARDED_BY(mu_) = 0;
  int busy_ ABSL_GUARDED_BY(mu_) = 0;  // Helpers that work.
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  std::atomic<size_t> next_{0};  // Relaxed: only hands out numbers; mu_ orders the rest.

  std::vector<std::thread> helpers_;  // Last: they use the others.
};

}  // namespace sparrow

#endif  // SPARROW_BASE_THREAD_TEAM_H_
