#ifndef SPARROW_DENSE_INTERACTION_H_
#define SPARROW_DENSE_INTERACTION_H_

// DLRM's dot interaction. A sample has V vectors of D numbers: the bottom MLP's output first, if there is one, then the
// features' vectors. Out of it come that output itself and the dot product of every pair of different vectors, in the
// order of facebookresearch/dlrm: bottom | (1,0) (2,0) (2,1) (3,0) ... , so that pair (i, j), i > j, is number
// i (i - 1) / 2 + j. Every function accepts 0 rows, works on the calling thread, and treats samples independently.

#include <cstdint>

#include "dense/matrix.h"

namespace sparrow {

struct InteractionShape {
  int64_t dim = 0;          // D
  int64_t bottom_cols = 0;  // D, or 0: there is no bottom vector.
  int64_t features = 0;

  int64_t vectors() const { return features + (bottom_cols > 0 ? 1 : 0); }
  int64_t pairs() const { return vectors() * (vectors() - 1) / 2; }
  int64_t outputs() const { return bottom_cols + pairs(); }
};

void InteractionForwardCpu(const InteractionShape& shape, ConstMatrix bottom /*[n, bottom_cols]*/,
                           ConstMatrix sparse /*[n, features * dim]*/, Matrix out /*[n, outputs]*/);

// Overwrites both gradients.
void InteractionBackwardCpu(const InteractionShape& shape, ConstMatrix bottom, ConstMatrix sparse,
                            ConstMatrix out_gradients /*[n, outputs]*/, Matrix bottom_gradients /*[n, bottom_cols]*/,
                            Matrix sparse_gradients /*[n, features * dim]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_INTERACTION_H_
