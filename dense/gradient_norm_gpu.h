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

}  // namespace sparrow

#endif  // SPARROW_DENSE_GRADIENT_NORM_GPU_H_
