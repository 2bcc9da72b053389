#include "dense/mlp_gpu.h"

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
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
    ASSIGN_OR_RETURN(DeviceBuffer<char> mask, AllocateOnDevice<char>(last ? 0 : ReluMaskBytes(rows_max, weight.rows),
                                                                     absl::StrCat("the mask of ", name)));
    made.push_back({.weight = weight,
                    .bias = parameters->layout().at(absl::StrCat(name, ".bias")),
                    .relu = !last || last_relu,
                    .outputs = std::move(outputs),
                    .gradients = std::move(gradients),
                    .mask = std::move(mask)});
  }
  return MlpGpu(std::move(made), parameters);
}

DeviceMatrix MlpGpu::Forward(const DeviceMatrix& x, ModelStreams* streams, const Stream& stream) {
  DeviceMatrix in = x;
  for (Layer& layer : layers_) {
    const DeviceMatrix out = layer.outputs.Rows(x.rows);
    streams->products()->Forward(in, parameters_->matrix(layer.weight), parameters_->vector(layer.bias), layer.relu,
                                 out, layer.mask.data(), stream);
    in = out;
  }
  return in;
}

void MlpGpu::Backward(const DeviceMatrix& x, const DeviceMatrix& x_gradients, ModelStreams* streams,
                      const Stream& stream) {
  for (size_t i = layers_.size(); i-- > 0;) {
    Layer& layer = layers_[i];
    const DeviceMatrix y_gradients = layer.gradients.Rows(x.rows);
    const DeviceMatrix in = i == 0 ? x : layers_[i - 1].outputs.Rows(x.rows);
    streams->BackwardWeights(y_gradients, in, parameters_->gradients(layer.weight), parameters_->gradients(layer.bias),
                             stream);
    const DeviceMatrix in_gradients = i == 0 ? x_gradients : layers_[i - 1].gradients.Rows(x.rows);
    if (in_gradients.data == nullptr) continue;
    streams->products()->BackwardInput(y_gradients, parameters_->matrix(layer.weight),
                                       i == 0 ? nullptr : layers_[i - 1].mask.data(), /*add=*/false, in_gradients,
                                       stream);
  }
}

}  // namespace sparrow
