#ifndef SPARROW_DENSE_SOFTMAX_LOSS_GPU_H_
#define SPARROW_DENSE_SOFTMAX_LOSS_GPU_H_

// The CUDA half of dense/softmax_loss.h. Needs CUDA and base/cuda only.

#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"

namespace sparrow {

// Adds the cross-entropies of all rows to *loss_sum: log(sum_j exp(logit_j)) - logit_target, j < classes, each in
// float, their sum in double in an order that depends on n alone. gradient_scale not null: replaces the logits by their
// gradients, gradient_scale[0] * (softmax - onehot), rounded once; 0 in columns from classes on. Null: logits stay.
//
// All pointers are GPU memory, logits of the precision's type. 0 rows are legal. Queued on `stream`, without allocation
// or synchronisation, so a graph can record it. Two runs are bit-equal. Rows that begin at multiples of 16 bytes, of
// whole 16 bytes each, are read from GPU memory once where a multiprocessor's shared memory holds one, of 224 KiB.
// REQUIRES: targets < classes <= logits.cols.
void SoftmaxLossGpu(Precision precision, const DeviceMatrix& logits /*[n, at least classes]*/,
                    const uint16_t* targets /*[n]*/, int64_t classes, const float* gradient_scale /*[1], or null*/,
                    float* row_losses /*[n], written*/, double* loss_sum /*[1]*/, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_SOFTMAX_LOSS_GPU_H_
