#ifndef SPARROW_EMBEDDING_INITIALIZER_H_
#define SPARROW_EMBEDDING_INITIALIZER_H_

// The initial weights of a row: a pure function of (table seed, key, column), so every server, every restart and every
// tier agrees on a row that was never trained, and nothing need be stored for it. Fixed for ever: golden files and the
// restoring of checkpoints depend on it.

#include <cstdint>

#include "base/cuda/host_device.h"
#include "base/random.h"

namespace sparrow {

enum class InitializerKind { kUniform, kNormal, kConstant };
struct Initializer {
  InitializerKind kind = InitializerKind::kUniform;
  double scale = 0;  // Bound, standard deviation, or the constant.
};

// The seed of one row's stream. `table_seed` is TableSpec::seed.
SPARROW_HOST_DEVICE inline uint64_t RowSeed(uint64_t table_seed, uint64_t key) { return RandomBits(table_seed, key); }

// Column `column` of the row whose seed is `row_seed`.
SPARROW_HOST_DEVICE inline float InitialValue(const Initializer& initializer, uint64_t row_seed, uint32_t column) {
  switch (initializer.kind) {
    case InitializerKind::kUniform:
      return static_cast<float>(initializer.scale * (2 * RandomUniform(row_seed, column) - 1));
    case InitializerKind::kNormal:
      return static_cast<float>(initializer.scale * RandomNormal(row_seed, column));
    case InitializerKind::kConstant:
      return static_cast<float>(initializer.scale);
  }
  return 0;
}

SPARROW_HOST_DEVICE inline void InitWeights(const Initializer& initializer, uint64_t table_seed, uint64_t key,
                                            uint32_t dim, float* weights /*[dim]*/) {
  const uint64_t row_seed = RowSeed(table_seed, key);
  for (uint32_t column = 0; column < dim; ++column) weights[column] = InitialValue(initializer, row_seed, column);
}

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_INITIALIZER_H_
