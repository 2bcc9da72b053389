#include "dense/dcnv2_gpu.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "dense/activation_gpu.h"
#include "dense/cast_gpu.h"
#include "dense/cross_gpu.h"
#include "dense/device_batch_buffer.h"
#include "dense/mlp_gpu.h"
#include "dense/model_streams.h"
#include "dense/top_gpu.h"

namespace sparrow {
namespace {

// A cross layer's parameters and what it holds of the current batch.
struct CrossLayerGpu {
  DeviceTensor v, w, b;
  DeviceBatchBuffer projected;  // [rows, rank]
  DeviceBatchBuffer factor;     // [rows, in]
  DeviceBatchBuffer out;        // [rows, in]
};

class Dcnv2Gpu final : public ModelGpu {
 public:
  struct Buffers {
    DeviceBatchBuffer dense;         // The bottom's inputs.
    DeviceBatchBuffer x0;            // The bottom's output, or the dense inputs | pooled vectors.
    DeviceBatchBuffer x_gradients;   // By what each cross layer reads, in turn.
    DeviceBatchBuffer x0_gradients;  // By x0, through the products with it.
    DeviceBatchBuffer factor_gradients;
    DeviceBatchBuffer projected_gradients;
  };

  Dcnv2Gpu(int64_t dense_columns, int64_t dense_inputs, int64_t sparse_inputs, Precision precision,
           std::unique_ptr<DeviceParameters> parameters, std::unique_ptr<ModelStreams> streams, MlpGpu bottom,
           std::vector<CrossLayerGpu> cross, TopGpu top, Buffers buffers)
      : ModelGpu(std::move(parameters)),
        dense_columns_(dense_columns),
        dense_inputs_(dense_inputs),
        sparse_inputs_(sparse_inputs),
        precision_(precision),
        streams_(std::move(streams)),
        bottom_(std::move(bottom)),
        cross_(std::move(cross)),
        top_(std::move(top)),
        buffers_(std::move(buffers)) {}

  void set_gradients_queued(GradientsQueued queued) override { streams_->set_gradients_queued(std::move(queued)); }
  void set_sparse_gradients_queued(SparseGradientsQueued queued) override { sparse_queued_ = std::move(queued); }
  DeviceMatrix sparse(int64_t rows) override { return SparseOf(&buffers_.x0, rows); }
  DeviceMatrix sparse_gradients(int64_t rows) override { return SparseOf(&buffers_.x_gradients, rows); }

  void Forward(const Batch& batch, const Stream& stream) override {
    top_.Forward(ForwardToTop(batch, stream), batch, streams_.get(), stream);
  }

  void ForwardLoss(const Batch& batch, const Stream& stream) override {
    top_.ForwardLoss(ForwardToTop(batch, stream), buffers_.x_gradients.Rows(batch.rows), batch, streams_.get(), stream);
  }

  void Backward(const Batch& batch, const Stream& stream) override {
    const int64_t rows = batch.rows;
    const DeviceMatrix crossed = cross_.back().out.Rows(rows);
    const DeviceMatrix x_gradients = buffers_.x_gradients.Rows(rows);
    top_.Backward(crossed, x_gradients, streams_.get(), stream);
    BackwardCross(rows, stream);
    // x0 was the first layer's input and a factor of each. The bottom's part goes where its backward begins.
    const DeviceMatrix x0_gradients = buffers_.x0_gradients.Rows(rows);
    if (!bottom_.empty()) {
      const int64_t padded = PaddedColumns(dense_inputs_);
      SumGradientsReluGpu(precision_, bottom_.output(rows), buffers_.x_gradients.Columns(rows, 0, padded),
                          buffers_.x0_gradients.Columns(rows, 0, padded), bottom_.output_gradients(rows), stream);
    }
    SumGradientsReluGpu(precision_, /*y=*/{}, x_gradients, x0_gradients, x_gradients, stream);
    if (sparse_queued_ != nullptr) sparse_queued_();
    if (!bottom_.empty()) {
      bottom_.Backward(buffers_.dense.Rows(rows), /*x_gradients=*/{}, streams_.get(), stream);
    }
  }

 private:
  DeviceMatrix SparseOf(DeviceBatchBuffer* buffer, int64_t rows) {
    return buffer->Columns(rows, dense_inputs_, dense_inputs_ + sparse_inputs_);
  }

  DeviceMatrix ForwardToTop(const Batch& batch, const Stream& stream) {
    const int64_t rows = batch.rows;
    const DeviceMatrix x0 = buffers_.x0.Rows(rows);
    const DeviceMatrix first = buffers_.x0.Columns(rows, 0, dense_inputs_);
    if (bottom_.empty()) {
      if (dense_columns_ > 0) CastGpu(precision_, batch.dense, dense_columns_, first, stream);
    } else {
      const DeviceMatrix dense = buffers_.dense.Rows(rows);
      CastGpu(precision_, batch.dense, dense_columns_, dense, stream);
      CopyGpu(precision_, bottom_.Forward(dense, streams_.get(), stream), first, stream);
    }
    DeviceMatrix x = x0;
    for (CrossLayerGpu& layer : cross_) {
      const DeviceMatrix projected = layer.projected.Rows(rows);
      const DeviceMatrix factor = layer.factor.Rows(rows);
      const DeviceMatrix out = layer.out.Rows(rows);
      streams_->products()->Forward(x, parameters_->matrix(layer.v), /*b=*/nullptr, /*relu=*/false, projected,
                                    /*relu_mask=*/nullptr, stream);
      streams_->products()->Forward(projected, parameters_->matrix(layer.w), parameters_->vector(layer.b),
                                    /*relu=*/false, factor, /*relu_mask=*/nullptr, stream);
      CrossCombineForwardGpu(precision_, x0, factor, x, out, stream);
      x = out;
    }
    return x;
  }

  // x_gradients: on entry by the last cross layer's output, on return by the first one's input; x0_gradients become
  // those through the products with x0.
  void BackwardCross(int64_t rows, const Stream& stream) {
    const DeviceMatrix x_gradients = buffers_.x_gradients.Rows(rows);
    const DeviceMatrix factor_gradients = buffers_.factor_gradients.Rows(rows);
    const DeviceMatrix projected_gradients = buffers_.projected_gradients.Rows(rows);
    ProductsGpu* const products = streams_->products();
    for (size_t l = cross_.size(); l-- > 0;) {
      CrossLayerGpu& layer = cross_[l];
      const DeviceMatrix x = l == 0 ? buffers_.x0.Rows(rows) : cross_[l - 1].out.Rows(rows);
      CrossCombineBackwardGpu(precision_, x_gradients, buffers_.x0.Rows(rows), layer.factor.Rows(rows),
                              factor_gradients, buffers_.x0_gradients.Rows(rows), /*first=*/l + 1 == cross_.size(),
                              stream);
      streams_->BackwardWeights(factor_gradients, layer.projected.Rows(rows), parameters_->gradients(layer.w),
                                parameters_->gradients(layer.b), stream);
      products->BackwardInput(factor_gradients, parameters_->matrix(layer.w), /*relu_mask=*/nullptr, /*add=*/false,
                              projected_gradients, stream);
      streams_->BackwardWeights(projected_gradients, x, parameters_->gradients(layer.v), /*b_gradients=*/nullptr,
                                stream);
      products->BackwardInput(projected_gradients, parameters_->matrix(layer.v), /*relu_mask=*/nullptr, /*add=*/true,
                              x_gradients, stream);
    }
  }

  const int64_t dense_columns_;
  const int64_t dense_inputs_;
  const int64_t sparse_inputs_;
  const Precision precision_;
  std::unique_ptr<ModelStreams> streams_;
  SparseGradientsQueued sparse_queued_;
  MlpGpu bottom_;
  std::vector<CrossLayerGpu> cross_;
  TopGpu top_;
  Buffers buffers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelGpu>> MakeDcnv2Gpu(const v1::Dcnv2& config, const ModelShape& shape,
                                                       std::unique_ptr<DeviceParameters> parameters,
                                                       const ModelGpu::Options& options, const Stream& stream) {
  const int64_t dense_inputs =
      config.bottom_size() == 0 ? shape.dense_columns : config.bottom(config.bottom_size() - 1);
  int64_t sparse_inputs = 0;
  for (uint32_t dim : shape.feature_dims) sparse_inputs += dim;
  const int64_t inputs = dense_inputs + sparse_inputs;
  ASSIGN_OR_RETURN(std::unique_ptr<ModelStreams> streams, ModelStreams::Make({.precision = options.precision,
                                                                              .deterministic = options.deterministic,
                                                                              .plan_file = options.plan_file},
                                                                             stream));
  ASSIGN_OR_RETURN(MlpGpu bottom, MlpGpu::Make("bottom", config.bottom_size(), /*last_relu=*/true, options.rows_max,
                                               options.precision, parameters.get(), stream));
  const auto buffer = [&](int64_t cols, absl::string_view what) {
    return DeviceBatchBuffer::Make(options.rows_max, cols, options.precision, what, stream);
  };
  std::vector<CrossLayerGpu> cross;
  for (uint32_t i = 0; i < config.cross_layers(); ++i) {
    const auto tensor = [&](absl::string_view name) {
      return parameters->layout().at(absl::StrCat("cross.", i, ".", name));
    };
    ASSIGN_OR_RETURN(DeviceBatchBuffer projected, buffer(config.cross_rank(), "a cross layer's projection"));
    ASSIGN_OR_RETURN(DeviceBatchBuffer factor, buffer(inputs, "a cross layer's factor"));
    ASSIGN_OR_RETURN(DeviceBatchBuffer out, buffer(inputs, "a cross layer's output"));
    cross.push_back({.v = tensor("v"),
                     .w = tensor("w"),
                     .b = tensor("b"),
                     .projected = std::move(projected),
                     .factor = std::move(factor),
                     .out = std::move(out)});
  }
  ASSIGN_OR_RETURN(TopGpu top,
                   TopGpu::Make(config.top_size(), options.rows_max, options.precision, parameters.get(), stream));
  ASSIGN_OR_RETURN(DeviceBatchBuffer dense, buffer(shape.dense_columns, "the dense inputs"));
  ASSIGN_OR_RETURN(DeviceBatchBuffer x0, buffer(inputs, "the cross layers' input"));
  ASSIGN_OR_RETURN(DeviceBatchBuffer x_gradients, buffer(inputs, "the gradients of cross layers"));
  ASSIGN_OR_RETURN(DeviceBatchBuffer x0_gradients, buffer(inputs, "the gradients of the cross layers' input"));
  ASSIGN_OR_RETURN(DeviceBatchBuffer factor_gradients, buffer(inputs, "the gradients of factors"));
  ASSIGN_OR_RETURN(DeviceBatchBuffer projected_gradients, buffer(config.cross_rank(), "the gradients of projections"));
  return std::make_unique<Dcnv2Gpu>(shape.dense_columns, dense_inputs, sparse_inputs, options.precision,
                                    std::move(parameters), std::move(streams), std::move(bottom), std::move(cross),
                                    std::move(top),
                                    Dcnv2Gpu::Buffers{.dense = std::move(dense),
                                                      .x0 = std::move(x0),
                                                      .x_gradients = std::move(x_gradients),
                                                      .x0_gradients = std::move(x0_gradients),
                                                      .factor_gradients = std::move(factor_gradients),
                                                      .projected_gradients = std::move(projected_gradients)});
}

}  // namespace sparrow
