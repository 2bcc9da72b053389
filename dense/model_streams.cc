#include "dense/model_streams.h"

#include <optional>

#include "absl/status/status.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<ModelStreams>> ModelStreams::Make(const ProductsGpu::Options& options,
                                                                 const Stream& stream) {
  std::optional<ProductsGpu> products = ProductsGpu::Make(options, stream);
  std::optional<ProductsGpu> side_products = ProductsGpu::Make(options, stream);
  if (!products.has_value() || !side_products.has_value()) {
    return absl::ResourceExhaustedError("the GPU is out of memory: matrix products need room to work in");
  }
  return std::unique_ptr<ModelStreams>(new ModelStreams(std::move(*products), std::move(*side_products)));
}

void ModelStreams::BackwardWeights(const DeviceMatrix& y_gradients, const DeviceMatrix& x, float* w_gradients,
                                   float* b_gradients, const Stream& stream) {
  if (!overlap_) return products_.BackwardWeights(y_gradients, x, w_gradients, b_gradients, stream);
  fork_.Record(stream);
  side_.WaitFor(fork_);
  side_products_.BackwardWeights(y_gradients, x, w_gradients, b_gradients, side_);
  forked_ = true;
}

void ModelStreams::Join(const Stream& stream) {
  if (!forked_) return;
  join_.Record(side_);
  stream.WaitFor(join_);
  forked_ = false;
}

}  // namespace sparrow
