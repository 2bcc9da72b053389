#ifndef SPARROW_WORKER_GPU_OPTIMIZER_STATE_H_
#define SPARROW_WORKER_GPU_OPTIMIZER_STATE_H_

// A dense optimizer's state between the host, where checkpoints read and write it, and a GPU, where it is used.

#include "base/cuda/stream.h"
#include "dense/dense_optimizer.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/device_layout.h"

namespace sparrow {

// Both wait for what they copy. REQUIRES: optimizers of one kind, of a host vector and of its layout on the GPU.
void OptimizerStateToGpu(DenseOptimizer* from, const DeviceLayout& layout, DenseOptimizerGpu* to, const Stream& stream);
void OptimizerStateFromGpu(DenseOptimizerGpu* from, const DeviceLayout& layout, DenseOptimizer* to,
                           const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_WORKER_GPU_OPTIMIZER_STATE_H_
