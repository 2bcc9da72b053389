#ifndef SPARROW_DENSE_GELU_GPU_H_
#define SPARROW_DENSE_GELU_GPU_H_

// The CUDA half of dense/gelu.h. Needs CUDA and base/cuda only.
//
// Matrices are GPU memory with elements of the precision's type; each result is computed in float and rounded once. In
// 16 bits with the hardware's exponential, whose error is far below the rounding. 0 rows are legal. Queued on `stream`,
// without allocation or synchronisation, so a graph can record it. Two runs are bit-equal.

#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"

namespace sparrow {

void GeluForwardGpu(Precision precision, const DeviceMatrix& x /*[n, m]*/, const DeviceMatrix& y /*[n, m]*/,
                    const Stream& stream);

// In place: from gradients by y to those by x. bias_gradients not null: the sums of their columns, as they are stored,
// are added to it, in an order that depends on the shape alone. REQUIRES: workspace of ColumnSumsWorkspaceFloats(n, m)
// (dense/column_sums.h) at a multiple of 16 bytes, or no bias_gradients.
void GeluBackwardGpu(Precision precision, const DeviceMatrix& x /*[n, m]*/, const DeviceMatrix& gradients /*[n, m]*/,
                     float* bias_gradients /*[m], or null*/, float* workspace, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_GELU_GPU_H_
