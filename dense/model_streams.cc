#include "dense/model_streams.h"

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<ModelStreams>> ModelStreams::Make(const ProductsGpu::Options& options,
                                                                 const Stream& stream) {
  std::unique_ptr<ModelStreams> streams(new ModelStreams);
  streams->products_ = ProductsGpu::Make(options, stream);
  // Half of the multiprocessors (dense/linear_gpu.h): a product that takes all of them holds up the main stream's next.
  ProductsGpu::Options side = options;
  side.multiprocessors = 66;
  streams->side_products_ = ProductsGpu::Make(side, streams->side_);
  streams->sums_products_ = ProductsGpu::Make({.precision = options.precision}, streams->sums_);
  if (!streams->products_.has_value() || !streams->side_products_.has_value() || !streams->sums_products_.has_value()) {
    return GpuIsOutOfMemory(absl::StrCat("matrix products need ", 3 * kProductsWorkspaceBytes, " bytes to work in"));
  }
  return streams;
}

void ModelStreams::BackwardWeights(const DeviceMatrix& y_gradients, const DeviceMatrix& x, float* w_gradients,
                                   float* b_gradients, const Stream& stream) {
  if (Together()) {
    waiting_.push_back({y_gradients, x, w_gradients, b_gradients});
    int64_t tiles = 0;
    for (const LayerGradients& layer : waiting_) tiles += WeightTiles(layer);
    if (tiles < kWeightTilesAtOnce) return;
    // So many that all run at once; the last ones, which are a chain's largest.
    size_t first = waiting_.size() - 1;
    tiles = WeightTiles(waiting_[first]);
    while (first > 0 && tiles + WeightTiles(waiting_[first - 1]) <= kWeightTilesAtOnce) {
      tiles += WeightTiles(waiting_[--first]);
    }
    fork_.Record(stream);
    side_.WaitFor(fork_);
    MakeTogether(first, LaunchAt::kEnd, &*side_products_, side_);
    forked_ = true;
    return;
  }
  if (overlap_) {
    fork_.Record(stream);
    side_.WaitFor(fork_);
    const bool apart = b_gradients != nullptr && BiasesApart(x.rows);
    if (apart) {
      sums_.WaitFor(fork_);
      sums_products_->ColumnSums(y_gradients, b_gradients, sums_);
      summed_.Record(sums_);
    }
    side_products_->BackwardWeights(y_gradients, x, w_gradients, apart ? nullptr : b_gradients, side_);
    if (apart) side_.WaitFor(summed_);
    forked_ = true;
  } else {
    products_->BackwardWeights(y_gradients, x, w_gradients, b_gradients, stream);
  }
  const Stream& used = overlap_ ? side_ : stream;
  if (b_gradients != nullptr) Queued(b_gradients, used);
  Queued(w_gradients, used);
}

void ModelStreams::MakeTogether(size_t first, LaunchAt at, ProductsGpu* products, const Stream& stream) {
  const std::vector<LayerGradients> layers(waiting_.begin() + static_cast<ptrdiff_t>(first), waiting_.end());
  waiting_.resize(first);
  products->BackwardWeightsTogether(layers, at, stream);
  for (const LayerGradients& layer : layers) {
    if (layer.b_gradients != nullptr) Queued(layer.b_gradients, stream);
    Queued(layer.w_gradients, stream);
  }
}

void ModelStreams::Join(const Stream& stream) {
  if (!waiting_.empty()) MakeTogether(0, LaunchAt::kEarly, &*products_, stream);
  if (!forked_) return;
  join_.Record(side_);
  stream.WaitFor(join_);
  forked_ = false;
}

}  // namespace sparrow
