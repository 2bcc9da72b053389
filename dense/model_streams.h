#ifndef SPARROW_DENSE_MODEL_STREAMS_H_
#define SPARROW_DENSE_MODEL_STREAMS_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "dense/device_matrix.h"
#include "dense/device_parameters.h"
#include "dense/linear_gpu.h"

namespace sparrow {

// Where a model queues its work: a stream for the chain of layers, and one beside it for the gradients of weights,
// which nobody waits for but the optimizer.
class ModelStreams {
 public:
  // ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<ModelStreams>> Make(const ProductsGpu::Options& options, const Stream& stream);

  ProductsGpu* products() { return &*products_; }
  // Gradients of weights go to the side stream from now on (they stay in the main one by default), or do not.
  void set_overlap(bool overlap) { overlap_ = overlap; }
  // What BackwardWeights is given stays as it is until Join, so it may do several layers together, later.
  void set_operands_stay() { operands_stay_ = true; }
  // Whether gradients of biases are best left to BackwardWeights, which then makes them beside the chain.
  bool BiasesApart(int64_t rows) const { return Together() || (overlap_ && products_->SumsCost(rows)); }
  // Whom to tell of gradients; empty: nobody.
  void set_gradients_queued(GradientsQueued queued) { queued_ = std::move(queued); }

  // w_gradients and b_gradients as ProductsGpu::BackwardWeights, after all that `stream` has been given so far.
  void BackwardWeights(const DeviceMatrix& y_gradients, const DeviceMatrix& x, float* w_gradients, float* b_gradients,
                       const Stream& stream);
  // Tells of a parameter's gradients that were queued on `stream` by other means.
  void Queued(const float* gradients, const Stream& stream) {
    if (queued_ != nullptr) queued_(gradients, stream);
  }
  // Makes those that are left, and `stream` waits for all.
  void Join(const Stream& stream);

 private:
  ModelStreams() = default;

  bool Together() const { return overlap_ && operands_stay_ && products_->CanWeightsTogether(); }
  // Of the layers that wait, those from number `first` on.
  void MakeTogether(size_t first, LaunchAt at, ProductsGpu* products, const Stream& stream);

  std::optional<ProductsGpu> products_;
  Stream side_;
  std::optional<ProductsGpu> side_products_;  // Has its own memory to work in.
  Stream sums_;
  std::optional<ProductsGpu> sums_products_;  // Of the gradients of biases.
  Event fork_;
  Event summed_;
  Event join_;
  GradientsQueued queued_;
  bool overlap_ = false;
  bool forked_ = false;
  bool operands_stay_ = false;
  std::vector<LayerGradients> waiting_;  // Whose gradients of weights are still to be made.
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_MODEL_STREAMS_H_
