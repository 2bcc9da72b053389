#ifndef SPARROW_WORKER_SUM_OVER_WORKERS_H_
#define SPARROW_WORKER_SUM_OVER_WORKERS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "dense/collective.h"
#include "worker/batch_trainer.h"

namespace sparrow {

// The first n of *values, a step's dense gradients in the host's layout, and loss, samples and overflows of *sums
// become their sums over all workers, in one all-reduce. What *values holds behind them is unspecified, before and
// after. Errors are the collective's. REQUIRES: sums->samples below 2^24 over all workers; values->size() >= n.
absl::Status SumOverWorkers(Collective* collective, size_t n, std::vector<float>* values, BatchTrainer::Sums* sums);

}  // namespace sparrow

#endif  // SPARROW_WORKER_SUM_OVER_WORKERS_H_
