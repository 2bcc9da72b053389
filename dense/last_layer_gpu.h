#ifndef SPARROW_DENSE_LAST_LAYER_GPU_H_
#define SPARROW_DENSE_LAST_LAYER_GPU_H_

// The CUDA half of dense/last_layer.h. Needs CUDA and base/cuda only.
//
// Matrices are GPU memory with elements of the precision's type; everything else is float32 or double, in GPU memory. 0
// rows are legal. Queued on `stream`, without allocation or synchronisation, so a graph can record it. Two runs are
// bit-equal, and both functions compute the same logits. Rows that begin at multiples of 16 bytes, of whole 16 bytes
// each, and at most 1,024 16-bit or 512 float columns are read once, and that at the speed of the memory; others twice.

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"
#include "dense/last_layer.h"

namespace sparrow {

void LastLayerForwardGpu(Precision precision, const DeviceMatrix& h /*[n, in]*/, const LastLayer& layer,
                         float* logits /*[n]*/, const Stream& stream);

// GPU memory that LastLayerLossGpu works in, one launch at a time; its contents mean nothing before and after.
size_t LastLayerWorkspaceBytes(int64_t rows, int64_t in);

// As LastLayerLossCpu, with the number of samples and the loss scale in GPU memory, so that a graph can be replayed
// with others. More samples than rows are as many as rows. Activations of rows beyond the samples must be finite. The
// sum of losses is left in *loss_sum. h_gradients may be h itself. REQUIRES: workspace at a multiple of 16 bytes, of
// LastLayerWorkspaceBytes(n, in).
void LastLayerLossGpu(Precision precision, const DeviceMatrix& h /*[n, in]*/, const LastLayer& layer,
                      const float* labels /*[n]*/, const uint32_t* samples /*[1]*/, const float* loss_scale /*[1]*/,
                      float* logits /*[n], or nullptr*/, const DeviceMatrix& h_gradients /*[n, in]*/,
                      float* w_gradients /*[in]*/, float* b_gradients /*[1]*/, double* loss_sum /*[1]*/,
                      void* workspace, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_LAST_LAYER_GPU_H_
