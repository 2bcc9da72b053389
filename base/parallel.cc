#include "base/parallel.h"

#include <omp.h>

#include <algorithm>

#include "base/check.h"

namespace sparrow {

#ifdef SPARROW_TSAN
// libgomp synchronises by futexes that ThreadSanitizer does not see: run its loops serially there.
int ParallelThreads() { return 1; }
#else
int ParallelThreads() { return omp_in_parallel() != 0 ? 1 : std::max(1, omp_get_max_threads()); }
#endif

void UseThreads(int threads) {
  CHECK_GT(threads, 0);
  omp_set_num_threads(threads);
}

int UsableThreads() { return std::max(1, omp_get_max_threads()); }

int Cores() { return std::max(1, omp_get_num_procs()); }

void ParallelFor(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> body) {
  CHECK_GT(grain, 0);
  if (n <= 0) return;
  const int64_t grains = (n + grain - 1) / grain;
  const int team = ParallelThreads();
  const int64_t threads = std::min<int64_t>(team, grains);
  if (threads <= 1) {
    body(0, n);
    return;
  }
  // The whole team always, though some may have nothing to do: libgomp ends the threads that a smaller team does not
  // need, and starts new ones for the next larger one, which takes a millisecond. On many cores one large loop
  // therefore costs less than several small ones.
#pragma omp parallel for num_threads(team) schedule(static, 1)
  for (int64_t t = 0; t < threads; ++t) {
    body(std::min(n, grains * t / threads * grain), std::min(n, grains * (t + 1) / threads * grain));
  }
}

}  // namespace sparrow
