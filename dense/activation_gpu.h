#ifndef SPARROW_DENSE_ACTIVATION_GPU_H_
#define SPARROW_DENSE_ACTIVATION_GPU_H_

// What of activations is not part of a product (dense/linear_gpu.h) on a GPU. Needs CUDA and base/cuda only.

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"

namespace sparrow {

// gradients = 0 where y <= 0, else a + b: backward of a ReLU whose output y had two uses, with gradients a and b. Where
// y is NaN gradients pass, as on the CPU. Columns at and beyond y.cols came out of no ReLU and get the sum. y.data null: all do. b.data null: b is 0. gradients
// may be a or b.
// REQUIRES: equal rows and cols (y: at most as many cols); pointers and strides at multiples of 16 bytes.
// Queued on `stream`.
void SumGradientsReluGpu(Precision precision, const DeviceMatrix& y, const DeviceMatrix& a, const DeviceMatrix& b,
                         const DeviceMatrix& gradients, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_ACTIVATION_GPU_H_
