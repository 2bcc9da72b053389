#ifndef SPARROW_DENSE_LAYER_NORM_GPU_H_
#define SPARROW_DENSE_LAYER_NORM_GPU_H_

// The CUDA half of dense/layer_norm.h, with the residual sum before a norm and what flows into it on the way back.
// Needs CUDA and base/cuda only.
//
// Matrices and the norm's weight and bias are GPU memory with elements of the precision's type; arithmetic is in float,
// and each result is rounded once. Moments and gradients of parameters are float32. 0 rows are legal. Queued on
// `stream`, without allocation or synchronisation, so a graph can record it. Two runs are bit-equal. Rows of at most 16
// KiB that are whole multiples of 16 bytes, at multiples of 16 bytes, are read from GPU memory once; others several
// times.

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"
#include "dense/dropout_gpu.h"
#include "dense/layer_norm.h"

namespace sparrow {

// sum = residual + factor of dropout * branch; y = the norm of `sum` as it is stored. branch.data null: sum is the
// residual, and is not written. `sum` may be residual or branch; y overlaps nothing.
void AddLayerNormForwardGpu(Precision precision, const DeviceMatrix& residual /*[n, width]*/,
                            const DeviceMatrix& branch /*[n, width]*/, const DropoutGpu& dropout,
                            const DeviceMatrix& sum /*[n, width]*/, const void* weight /*[width]*/,
                            const void* bias /*[width]*/, RowMoments* moments /*[n]*/,
                            const DeviceMatrix& y /*[n, width]*/, const Stream& stream);

// What backward makes of a row, and of what else.
struct LayerNormGradients {
  Write write = Write::kOverwrite;  // kAdd: x_gradients are added to; they are the residual's then.
  DeviceMatrix x_gradients = {};    // [n, width]. May be y_gradients with kOverwrite.
  // data null: not wanted. Else dropout's factor times the new x_gradients: what flows into the branch whose sum with
  // the residual x is. May be y_gradients.
  DropoutGpu dropout = {};
  DeviceMatrix branch_gradients = {};  // [n, width]
  float* weight_gradients = nullptr;   // [width], added to, in an order that depends on the shape alone.
  float* bias_gradients = nullptr;     // [width], likewise.
};

// Floats of GPU memory that LayerNormBackwardGpu works in, one call at a time; their contents mean nothing before and
// after.
size_t LayerNormWorkspaceFloats(int64_t n, int64_t width);

// REQUIRES: workspace at a multiple of 16 bytes, of LayerNormWorkspaceFloats(n, width).
void LayerNormBackwardGpu(Precision precision, const DeviceMatrix& y_gradients /*[n, width]*/,
                          const DeviceMatrix& x /*[n, width]*/, const void* weight /*[width]*/,
                          const RowMoments* moments /*[n]*/, const LayerNormGradients& gradients, float* workspace,
                          const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_LAYER_NORM_GPU_H_
