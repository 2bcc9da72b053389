#include "dense/mlp_gpu.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {

absl::StatusOr<MlpGpu> MlpGpu::Make(absl::string_view prefix, int layers, bool last_relu, int64_t rows_max,
                                    Precision precision, DeviceParameters* parameters, const Stream& stream) {
  std::vector<Layer> made;
  for (int i = 0; i < layers; ++i) {
    const std::string name = absl::StrCat(prefix, ".", i);
    const DeviceTensor weight = parameters->layout().at(absl::StrCat(name, ".weight"));
    const bool last = i + 1 == layers;
    ASSIGN_OR_RETURN(DeviceBatchBuffer outputs, DeviceBatchBuffer::Make(rows_max, weight.rows, precision,
                                                                        absl::StrCat("the outputs of ", name), stream));
    ASSIGN_OR_RETURN(
        DeviceBatchBuffer gradients,
        DeviceBatchBuffer::Make(rows_max, weight.rows, precision, absl::StrCat("the gradients of ", name), stream));
    made.push_back({.weight = weight,
                    .bias = parameters->layout().at(absl::StrCat(name, ".bias")),
                    .relu = !last || last_relu,
                    .outputs = std::move(outputs),
                    .gradients = std::move(gradients)});
  }
  return MlpGpu(std::move(made), parameters);
}

DeviceMatrix MlpGpu::Forward(const DeviceMatrix& x, ModelStreams* streams, const Stream& stream) {
  DeviceMatrix in = x;
  for (Layer& layer : layers_) {
    const DeviceMatrix out = layer.outputs.Rows(x.rows);
    streams->products()->Forward(in, parameters_->matrix(layer.weight), parameters_->vector(layer.bias), layer.relu,
                                 out, /*relu_mask=*/nullptr, stream);
    in = out;
  }
  return in;
}

void MlpGpu::Backward(const DeviceMatrix& x, const DeviceMatrix& x_gradients, ModelStreams* streams,
                      const Stream& stream) {
  const bool with_weights = streams->BiasesApart(x.rows);
  for (size_t i = layers_.size(); i-- > 0;) {
    Layer& layer = layers_[i];
    const bool last = i + 1 == layers_.size();
    const DeviceMatrix y_gradients = layer.gradients.Rows(x.rows);
    const DeviceMatrix in = i == 0 ? x : layers_[i - 1].outputs.Rows(x.rows);
    // Else another layer's bias got its gradients with the backward of its ReLU, below.
    streams->BackwardWeights(y_gradients, in, parameters_->gradients(layer.weight),
                             last || with_weights ? parameters_->gradients(layer.bias) : nullptr, stream);
    if (i > 0) {
      float* const below = with_weights ? nullptr : parameters_->gradients(layers_[i - 1].bias);
      streams->products()->BackwardThroughRelu(y_gradients, parameters_->matrix(layer.weight), in,
                                               /*relu_mask=*/nullptr, layers_[i - 1].gradients.Rows(x.rows), below,
                                               stream);
      if (!with_weights) streams->Queued(below, stream);
    } else if (x_gradients.data != nullptr) {
      streams->products()->BackwardInput(y_gradients, parameters_->matrix(layer.weight), /*relu_mask=*/nullptr,
                                         /*add=*/false, x_gradients, stream);
    }
  }
}

}  // namespace sparrow
