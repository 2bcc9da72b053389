#ifndef SPARROW_DENSE_CAST_GPU_H_
#define SPARROW_DENSE_CAST_GPU_H_

// The CUDA half of dense/cast.h. Needs CUDA and base/cuda only.

#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"

namespace sparrow {

// As CastCpu; from: [to.rows, cols] without gaps, in GPU memory. Queued on `stream`.
void CastGpu(Precision precision, const float* from, int64_t cols, const DeviceMatrix& to, const Stream& stream);

// to[i, j] = from[i, j], for all of `to`. REQUIRES: to.rows == from.rows, to.cols <= from.cols. Queued on `stream`.
void CopyGpu(Precision precision, const DeviceMatrix& from, const DeviceMatrix& to, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_CAST_GPU_H_
