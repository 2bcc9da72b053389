#ifndef SPARROW_WORKER_OPTIMIZER_SLICES_H_
#define SPARROW_WORKER_OPTIMIZER_SLICES_H_

// An optimizer's state where each worker holds a slice of it (TrainConfig.zero), and as a whole, as checkpoints have
// it.

#include <memory>

#include "absl/status/statusor.h"
#include "dense/collective.h"
#include "dense/dense_optimizer.h"
#include "dense/dense_parameters.h"

namespace sparrow {

// On rank 0 the whole optimizer, of all workers' even slices; on the others null, without the memory for it. Every
// worker calls it. Errors of the collective.
absl::StatusOr<std::unique_ptr<DenseOptimizer>> GatherOptimizer(const v1::OptimizerConfig& config,
                                                                const DenseParameters& model, DenseOptimizer* part,
                                                                Collective* collective);

}  // namespace sparrow

#endif  // SPARROW_WORKER_OPTIMIZER_SLICES_H_
