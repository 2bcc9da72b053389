#ifndef SPARROW_DENSE_TOP_GPU_H_
#define SPARROW_DENSE_TOP_GPU_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "dense/device_matrix.h"
#include "dense/device_parameters.h"
#include "dense/mlp_gpu.h"
#include "dense/model_gpu.h"
#include "dense/model_streams.h"

namespace sparrow {

// The end of every model on a GPU: the layers called top.I, the last of which has one output, and the loss.
class TopGpu {
 public:
  // ResourceExhausted. layers: at least 1.
  static absl::StatusOr<TopGpu> Make(int layers, int64_t rows_max, Precision precision, DeviceParameters* parameters,
                                     const Stream& stream);

  // batch.logits from x.
  void Forward(const DeviceMatrix& x /*[batch.rows, in]*/, const ModelGpu::Batch& batch, ModelStreams* streams,
               const Stream& stream);
  // Up to the loss, and the gradients by the last layer's inputs.
  void ForwardLoss(const DeviceMatrix& x, const DeviceMatrix& x_gradients, const ModelGpu::Batch& batch,
                   ModelStreams* streams, const Stream& stream);
  // Overwrites x_gradients. REQUIRES: ForwardLoss of the same matrices. x came out of no ReLU, or its backward is the
  // caller's.
  void Backward(const DeviceMatrix& x, const DeviceMatrix& x_gradients, ModelStreams* streams, const Stream& stream);

 private:
  TopGpu(MlpGpu hidden, DeviceTensor weight, DeviceTensor bias, Precision precision, DeviceParameters* parameters,
         DeviceBuffer<char> workspace)
      : hidden_(std::move(hidden)),
        weight_(weight),
        bias_(bias),
        precision_(precision),
        parameters_(parameters),
        workspace_(std::move(workspace)) {}

  MlpGpu hidden_;
  DeviceTensor weight_;
  DeviceTensor bias_;
  Precision precision_;
  DeviceParameters* parameters_;
  DeviceBuffer<char> workspace_;  // Of the last layer.
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_TOP_GPU_H_
