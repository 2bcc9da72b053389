#ifndef SPARROW_DENSE_GRADIENT_NORM_GPU_H_
#define SPARROW_DENSE_GRADIENT_NORM_GPU_H_

// The CUDA half of dense/gradient_norm.h. Needs CUDA and base/cuda only.

#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/dense_update.h"
#include "dense/gradient_norm.h"
#include "dense/grid_sum.h"

namespace sparrow {

// As GradientNormCpu; the result stays in GPU memory, where the optimizer reads it. All pointers are GPU memory. Two
// runs are bit-equal. Queued on `stream`. REQUIRES: gradients aligned to 16 bytes.
void GradientNormGpu(const float* gradients /*[size]*/, int64_t size, const DenseStepOptions* step /*[1]*/,
                     const ClipOptions& options, GridSums* sums, GradientClip* clip /*[1]*/, const Stream& stream);

// The two halves of it, for gradients that are not in one piece: adds a piece's squares to *sum, and then says what
// follows from the sum of all.
void AddSquaresGpu(const float* gradients /*[size]*/, int64_t size, GridSums* sums, double* sum /*[1]*/,
                   const Stream& stream);
void ClipGpu(const double* sum_of_squares /*[1]*/, const DenseStepOptions* step /*[1]*/, const ClipOptions& options,
             GradientClip* clip /*[1]*/, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_GRADIENT_NORM_GPU_H_
