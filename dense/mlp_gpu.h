#ifndef SPARROW_DENSE_MLP_GPU_H_
#define SPARROW_DENSE_MLP_GPU_H_

// dense/mlp.h on a GPU: a stack of fully connected layers.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/cuda/stream.h"
#include "dense/device_batch_buffer.h"
#include "dense/device_matrix.h"
#include "dense/device_parameters.h"
#include "dense/model_streams.h"

namespace sparrow {

// Layers with ReLU after each; the last may have none. Layers whose names are PREFIX.I.weight and PREFIX.I.bias.
class MlpGpu {
 public:
  // ResourceExhausted. `inputs`: columns of x. layers may be 0: then the MLP is the identity. last_relu: after the last
  // layer too.
  static absl::StatusOr<MlpGpu> Make(absl::string_view prefix, int layers, bool last_relu, int64_t rows_max,
                                     Precision precision, DeviceParameters* parameters, const Stream& stream);

  bool empty() const { return layers_.empty(); }
  // REQUIRES: x stays as it is until the backward has run. Returns the outputs, x itself if there is no layer.
  DeviceMatrix Forward(const DeviceMatrix& x, ModelStreams* streams, const Stream& stream);
  // The outputs of the last Forward, and where the gradients by them go before Backward. That is, by what the last
  // layer puts out before its ReLU: whoever makes them applies it (the backward of a ReLU needs the outputs alone).
  DeviceMatrix output(int64_t rows) { return layers_.back().outputs.Rows(rows); }
  DeviceMatrix output_gradients(int64_t rows) { return layers_.back().gradients.Rows(rows); }
  // Of the last Forward's x. x_gradients.data null: not wanted.
  void Backward(const DeviceMatrix& x, const DeviceMatrix& x_gradients, ModelStreams* streams, const Stream& stream);

 private:
  struct Layer {
    DeviceTensor weight;
    DeviceTensor bias;
    bool relu;
    DeviceBatchBuffer outputs;
    DeviceBatchBuffer gradients;
  };

  MlpGpu(std::vector<Layer> layers, DeviceParameters* parameters)
      : layers_(std::move(layers)), parameters_(parameters) {}

  std::vector<Layer> layers_;
  DeviceParameters* parameters_;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_MLP_GPU_H_
