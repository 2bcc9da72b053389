#ifndef SPARROW_EMBEDDING_OPTIMIZER_H_
#define SPARROW_EMBEDDING_OPTIMIZER_H_

// The arithmetic of one row: how a summed gradient changes weights and optimizer state. Written once, compiled into the
// CPU and the CUDA halves. Formulas and their sources: proto/sparrow/v1/table.proto, beside each optimizer.

#include <cstdint>

namespace sparrow {

enum class SparseOptimizerKind { kSgd, kMomentum, kAdagrad, kRowwiseAdagrad, kAdam, kRowwiseAdam, kFtrl, kRmsProp };

// Plain parameters, unused ones 0.
struct SparseOptimizer {
  SparseOptimizerKind kind = SparseOptimizerKind::kSgd;
  double learning_rate = 0;
  double weight_decay = 0;
  double momentum = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double initial_accumulator = 0;
  double l1 = 0;
  double l2 = 0;
  double beta = 0;
  double decay = 0;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_OPTIMIZER_H_
