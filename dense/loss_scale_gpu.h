#ifndef SPARROW_DENSE_LOSS_SCALE_GPU_H_
#define SPARROW_DENSE_LOSS_SCALE_GPU_H_

// The CUDA half of dense/loss_scale.h. Needs CUDA and base/cuda only.

#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"

namespace sparrow {

// All pointers are GPU memory. Queued on `stream`; a graph can record it.

// *count grows by the elements that are infinite or NaN. REQUIRES: fewer than 2^32 elements.
void CountNotFiniteGpu(const DeviceMatrix& values, Precision precision, uint64_t* count /*[1]*/, const Stream& stream);

// As UnscaleCpu, bit for bit.
void UnscaleGpu(float* values /*[n]*/, int64_t n, const float* scale /*[1]*/, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_LOSS_SCALE_GPU_H_
