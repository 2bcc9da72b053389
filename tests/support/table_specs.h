#ifndef SPARROW_TESTS_SUPPORT_TABLE_SPECS_H_
#define SPARROW_TESTS_SUPPORT_TABLE_SPECS_H_

// Table specifications for tests: every parameter differs from its default and from what would make it vanish.

#include <array>
#include <cstdint>
#include <string>

#include "embedding/table_spec.h"

namespace sparrow {

inline constexpr std::array<SparseOptimizerKind, 8> kAllOptimizers = {
    SparseOptimizerKind::kSgd,     SparseOptimizerKind::kMomentum,
    SparseOptimizerKind::kAdagrad, SparseOptimizerKind::kRowwiseAdagrad,
    SparseOptimizerKind::kAdam,    SparseOptimizerKind::kRowwiseAdam,
    SparseOptimizerKind::kFtrl,    SparseOptimizerKind::kRmsProp};

inline SparseOptimizer TestOptimizer(SparseOptimizerKind kind) {
  return {.kind = kind,
          .learning_rate = 0.13,
          .weight_decay = 0.07,
          .momentum = 0.8,
          .beta1 = 0.85,
          .beta2 = 0.97,
          .eps = 1e-3,
          .initial_accumulator = 0.3,
          .l1 = 0.02,
          .l2 = 0.4,
          .beta = 1.5,
          .decay = 0.9};
}

inline TableSpec TestSpec(std::string name, uint32_t dim, SparseOptimizerKind kind, uint64_t bounded_rows = 0) {
  return {.name = std::move(name),
          .dim = dim,
          .bounded_rows = bounded_rows,
          .optimizer = TestOptimizer(kind),
          .initializer = {InitializerKind::kUniform, 0.25},
          .seed = 0x5eed0fab1eu + dim};
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_TABLE_SPECS_H_
