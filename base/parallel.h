#ifndef SPARROW_BASE_PARALLEL_H_
#define SPARROW_BASE_PARALLEL_H_

// Data-parallel loops on the CPU. On OpenMP's threads, because oneDNN runs on them too and two pools would fight for
// the cores.

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace sparrow {

// Calls body(begin, end) on disjoint ranges that cover [0, n), on all cores; each range but the last is a multiple of
// `grain`. Runs on the calling thread if n <= grain. The cut depends on n, grain and the thread count alone. `body`
// must not throw.
void ParallelFor(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t begin, int64_t end)> body);

// Threads that ParallelFor uses when called from this thread, at least 1.
int ParallelThreads();

// From here on ParallelFor uses at most so many threads when called from this thread: for one that works beside those
// that compute, or beside others like it. REQUIRES: threads > 0.
void UseThreads(int threads);
inline void UseOneThread() { UseThreads(1); }
// That limit; Cores() where there is none.
int UsableThreads();

// UseThreads for as long as this lives.
class ScopedThreads {
 public:
  explicit ScopedThreads(int threads) : before_(UsableThreads()) { UseThreads(threads); }
  ~ScopedThreads() { UseThreads(before_); }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  const int before_;
};

// Cores of this machine that the process may use, at least 1.
int Cores();

}  // namespace sparrow

#endif  // SPARROW_BASE_PARALLEL_H_
