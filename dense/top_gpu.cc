#include "dense/top_gpu.h"

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
#include "base/status_macros.h"
#include "dense/last_layer_gpu.h"

namespace sparrow {

absl::StatusOr<TopGpu> TopGpu::Make(int layers, int64_t rows_max, Precision precision, DeviceParameters* parameters,
                                    const Stream& stream) {
  ASSIGN_OR_RETURN(MlpGpu hidden,
                   MlpGpu::Make("top", layers - 1, /*last_relu=*/true, rows_max, precision, parameters, stream));
  const DeviceTensor weight = parameters->layout().at(absl::StrCat("top.", layers - 1, ".weight"));
  const DeviceTensor bias = parameters->layout().at(absl::StrCat("top.", layers - 1, ".bias"));
  ASSIGN_OR_RETURN(DeviceBuffer<char> workspace,
                   AllocateOnDevice<char>(LastLayerWorkspaceBytes(rows_max, weight.cols), "the last layer's sums"));
  workspace.Fill(0, stream);
  return TopGpu(std::move(hidden), weight, bias, precision, parameters, std::move(workspace));
}

void TopGpu::Forward(const DeviceMatrix& x, const ModelGpu::Batch& batch, ModelStreams* streams, const Stream& stream) {
  const DeviceMatrix h = hidden_.Forward(x, streams, stream);
  LastLayerForwardGpu(precision_, h,
                      {.w = parameters_->weights(weight_), .b = parameters_->weights(bias_), .relu = !hidden_.empty()},
                      batch.logits, stream);
}

void TopGpu::ForwardLoss(const DeviceMatrix& x, const DeviceMatrix& x_gradients, const ModelGpu::Batch& batch,
                         ModelStreams* streams, const Stream& stream) {
  const DeviceMatrix h = hidden_.Forward(x, streams, stream);
  const DeviceMatrix h_gradients = hidden_.empty() ? x_gradients : hidden_.output_gradients(x.rows);
  LastLayerLossGpu(
      precision_, h, {.w = parameters_->weights(weight_), .b = parameters_->weights(bias_), .relu = !hidden_.empty()},
      batch.labels, batch.samples, batch.loss_scale, batch.logits, h_gradients, parameters_->gradients(weight_),
      parameters_->gradients(bias_), batch.loss_sum, workspace_.data(), stream);
}

void TopGpu::Backward(const DeviceMatrix& x, const DeviceMatrix& x_gradients, ModelStreams* streams,
                      const Stream& stream) {
  // Left by ForwardLoss.
  streams->Queued(parameters_->gradients(bias_), stream);
  streams->Queued(parameters_->gradients(weight_), stream);
  hidden_.Backward(x, x_gradients, streams, stream);
}

}  // namespace sparrow
