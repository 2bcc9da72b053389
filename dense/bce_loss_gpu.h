#ifndef SPARROW_DENSE_BCE_LOSS_GPU_H_
#define SPARROW_DENSE_BCE_LOSS_GPU_H_

// The CUDA half of dense/bce_loss.h. Needs CUDA and base/cuda only.

#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/grid_sum.h"

namespace sparrow {

// As BceWithLogitsCpu; the sum of losses is left in *loss_sum. All pointers are GPU memory. Two runs are bit-equal.
// Queued on `stream`.
void BceWithLogitsGpu(const float* logits /*[n]*/, const float* labels /*[n]*/, int64_t n,
                      float* logit_gradients /*[n]*/, double* loss_sum /*[1]*/, GridSums* sums, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_BCE_LOSS_GPU_H_
