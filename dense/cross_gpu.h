#ifndef SPARROW_DENSE_CROSS_GPU_H_
#define SPARROW_DENSE_CROSS_GPU_H_

// The CUDA half of dense/cross.h, as far as it goes element by element; the products are those of the linear layers.
// Needs CUDA and base/cuda only.
//
// All matrices are [n, in], GPU memory, with elements of the precision's type, computed in float32 and rounded once. A
// matrix may be columns of a wider one; nothing beyond its columns is written. What is written may be a matrix that is
// read. 0 rows are legal. Queued on `stream`, without allocation or synchronisation, so a graph can record it.

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"

namespace sparrow {

// y = x0 * factor + x, with factor = w (v x) + b.
void CrossCombineForwardGpu(Precision precision, const DeviceMatrix& x0, const DeviceMatrix& factor,
                            const DeviceMatrix& x, const DeviceMatrix& y, const Stream& stream);

// factor_gradients = y_gradients * x0, and x0_gradients = y_gradients * factor, which with `first` overwrites them and
// otherwise is added to them. y_gradients are also the part of x's gradients that does not pass through the products.
void CrossCombineBackwardGpu(Precision precision, const DeviceMatrix& y_gradients, const DeviceMatrix& x0,
                             const DeviceMatrix& factor, const DeviceMatrix& factor_gradients,
                             const DeviceMatrix& x0_gradients, bool first, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_CROSS_GPU_H_
