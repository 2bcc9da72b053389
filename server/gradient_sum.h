#ifndef SPARROW_SERVER_GRADIENT_SUM_H_
#define SPARROW_SERVER_GRADIENT_SUM_H_

// The sum over workers of one table's row gradients.

#include <cstdint>
#include <span>
#include <vector>

#include "embedding/partition.h"

namespace sparrow {

// Row gradients of one table. Keeps its memory from step to step.
struct RowGradients {
  std::vector<Key> keys;         // [n], unique.
  std::vector<float> gradients;  // [n, dim]

  uint64_t bytes() const { return keys.capacity() * sizeof(Key) + gradients.capacity() * sizeof(float); }
};

// Reusable. Not thread-safe; uses all cores itself if there are many rows.
class GradientSum {
 public:
  // Adds the rows of sources[1..] to sources[0], in this order: a key's sum is ((first + second) + third)... whatever
  // the number of threads. Keys that sources[0] lacks are appended in order of first appearance. REQUIRES: at least one
  // source; dim > 0; fewer than 2^31 rows in all.
  void Add(std::span<RowGradients* const> sources, uint32_t dim);

  // What Add takes, beside its sources, for so many rows of all of them, at most; and what is kept of it.
  static uint64_t BytesFor(uint64_t rows, uint32_t dim);
  uint64_t kept_bytes() const;

 private:
  std::vector<Key> keys_;         // [n]: of all sources, one after the other.
  std::vector<uint32_t> slots_;   // Open addressing, a power of two: 1 + the first of keys_ that is equal; 0 is free.
  std::vector<uint32_t> target_;  // [n]: the row of sources[0] that this one is added to.
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_GRADIENT_SUM_H_
