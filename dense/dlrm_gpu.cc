#include "dense/dlrm_gpu.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "dense/cast_gpu.h"
#include "dense/device_batch_buffer.h"
#include "dense/dlrm.h"
#include "dense/interaction_gpu.h"
#include "dense/mlp_gpu.h"
#include "dense/model_streams.h"
#include "dense/top_gpu.h"

namespace sparrow {
namespace {

class DlrmGpu final : public ModelGpu {
 public:
  struct Buffers {
    DeviceBatchBuffer dense;
    DeviceBatchBuffer sparse;
    DeviceBatchBuffer sparse_gradients;
    DeviceBatchBuffer interactions;
    DeviceBatchBuffer interaction_gradients;
  };

  DlrmGpu(int64_t dense_columns, const InteractionShape& shape, bool bottom_relu, Precision precision,
          std::unique_ptr<DeviceParameters> parameters, std::unique_ptr<ModelStreams> streams, MlpGpu bottom,
          TopGpu top, Buffers buffers)
      : ModelGpu(std::move(parameters)),
        dense_columns_(dense_columns),
        shape_(shape),
        bottom_relu_(bottom_relu),
        precision_(precision),
        streams_(std::move(streams)),
        bottom_(std::move(bottom)),
        top_(std::move(top)),
        buffers_(std::move(buffers)) {}

  void set_gradients_queued(GradientsQueued queued) override { streams_->set_gradients_queued(std::move(queued)); }
  void set_sparse_gradients_queued(SparseGradientsQueued queued) override { sparse_queued_ = std::move(queued); }
  DeviceMatrix sparse(int64_t rows) override { return buffers_.sparse.Columns(rows, 0, sparse_columns()); }
  DeviceMatrix sparse_gradients(int64_t rows) override {
    return buffers_.sparse_gradients.Columns(rows, 0, sparse_columns());
  }
  bool takes_gathered() const override { return InteractionGathersItself(shape_, precision_); }

  void Forward(const Batch& batch, const Stream& stream) override {
    top_.Forward(ForwardToTop(batch, stream), batch, streams_.get(), stream);
  }

  void ForwardLoss(const Batch& batch, const Stream& stream) override {
    top_.ForwardLoss(ForwardToTop(batch, stream), buffers_.interaction_gradients.Rows(batch.rows), batch,
                     streams_.get(), stream);
  }

  void Backward(const Batch& batch, const Stream& stream) override {
    streams_->set_overlap(batch.rows <= kOverlapRowsMax);
    const DeviceMatrix interaction_gradients = buffers_.interaction_gradients.Rows(batch.rows);
    top_.Backward(buffers_.interactions.Rows(batch.rows), interaction_gradients, streams_.get(), stream);
    DeviceMatrix bottom_gradients;
    if (has_bottom()) bottom_gradients = VectorOf(bottom_.output_gradients(batch.rows));
    InteractionBackwardGpu(shape_, precision_, bottom(batch.rows), sparse(batch.rows), VectorsReady::kYes,
                           WithoutPadding(interaction_gradients), bottom_relu_, bottom_gradients,
                           sparse_gradients(batch.rows), stream);
    if (sparse_queued_ != nullptr) sparse_queued_();
    if (has_bottom()) {
      bottom_.Backward(buffers_.dense.Rows(batch.rows), /*x_gradients=*/{}, streams_.get(), stream);
    }
    streams_->Join(stream);
  }

 private:
  // Up to this many rows a product leaves part of the GPU free, which a gradient of weights can use.
  static constexpr int64_t kOverlapRowsMax = 16384;

  bool has_bottom() const { return shape_.bottom_cols > 0; }
  int64_t sparse_columns() const { return shape_.features * shape_.dim; }
  DeviceMatrix VectorOf(DeviceMatrix matrix) const {
    matrix.cols = shape_.dim;  // Without the padding.
    return matrix;
  }
  DeviceMatrix WithoutPadding(DeviceMatrix interactions) const {
    interactions.cols = shape_.outputs();
    return interactions;
  }
  DeviceMatrix bottom(int64_t rows) { return has_bottom() ? VectorOf(bottom_.output(rows)) : DeviceMatrix{}; }

  DeviceMatrix ForwardToTop(const Batch& batch, const Stream& stream) {
    if (has_bottom()) {
      const DeviceMatrix dense = buffers_.dense.Rows(batch.rows);
      CastGpu(precision_, batch.dense, dense_columns_, dense, stream);
      bottom_.Forward(dense, streams_.get(), stream);
    }
    const DeviceMatrix interactions = buffers_.interactions.Rows(batch.rows);
    // Behind the bottom's last layer.
    const VectorsReady ready = has_bottom() ? VectorsReady::kYes : VectorsReady::kNo;
    if (batch.gathered != nullptr) {
      InteractionForwardGatheredGpu(shape_, precision_, bottom(batch.rows), *batch.gathered, sparse(batch.rows), ready,
                                    WithoutPadding(interactions), stream);
    } else {
      InteractionForwardGpu(shape_, precision_, bottom(batch.rows), sparse(batch.rows), ready,
                            WithoutPadding(interactions), stream);
    }
    return interactions;
  }

  const int64_t dense_columns_;
  const InteractionShape shape_;
  const bool bottom_relu_;
  const Precision precision_;
  std::unique_ptr<ModelStreams> streams_;
  SparseGradientsQueued sparse_queued_;
  MlpGpu bottom_;
  TopGpu top_;
  Buffers buffers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelGpu>> MakeDlrmGpu(const v1::Dlrm& config, const ModelShape& shape,
                                                      std::unique_ptr<DeviceParameters> parameters,
                                                      const ModelGpu::Options& options, const Stream& stream) {
  const bool bottom_relu = config.bottom_output() != v1::Dlrm::LINEAR;
  ASSIGN_OR_RETURN(const InteractionShape interaction, ShapeOfInteraction(config, shape));
  // A pass begins with a cast, which is not launched early, or with the interaction, which waits for the kernel before
  // it lets the next one begin.
  ASSIGN_OR_RETURN(std::unique_ptr<ModelStreams> streams, ModelStreams::Make({.precision = options.precision,
                                                                              .deterministic = options.deterministic,
                                                                              .plan_file = options.plan_file,
                                                                              .small_rows_max = 4096,
                                                                              .weights_ready = true},
                                                                             stream));
  streams->set_operands_stay();  // Each layer has buffers of its own.
  ASSIGN_OR_RETURN(MlpGpu bottom, MlpGpu::Make("bottom", config.bottom_size(), bottom_relu, options.rows_max,
                                               options.precision, parameters.get(), stream));
  ASSIGN_OR_RETURN(TopGpu top,
                   TopGpu::Make(config.top_size(), options.rows_max, options.precision, parameters.get(), stream));
  const auto buffer = [&](int64_t cols, absl::string_view what) {
    return DeviceBatchBuffer::Make(options.rows_max, cols, options.precision, what, stream);
  };
  ASSIGN_OR_RETURN(DeviceBatchBuffer dense, buffer(shape.dense_columns, "the dense inputs"));
  ASSIGN_OR_RETURN(DeviceBatchBuffer sparse, buffer(interaction.features * interaction.dim, "the pooled vectors"));
  ASSIGN_OR_RETURN(DeviceBatchBuffer sparse_gradients,
                   buffer(interaction.features * interaction.dim, "the gradients of pooled vectors"));
  ASSIGN_OR_RETURN(DeviceBatchBuffer interactions, buffer(interaction.outputs(), "the interactions"));
  ASSIGN_OR_RETURN(DeviceBatchBuffer interaction_gradients,
                   buffer(interaction.outputs(), "the gradients of interactions"));
  return std::make_unique<DlrmGpu>(shape.dense_columns, interaction, bottom_relu, options.precision,
                                   std::move(parameters), std::move(streams), std::move(bottom), std::move(top),
                                   DlrmGpu::Buffers{.dense = std::move(dense),
                                                    .sparse = std::move(sparse),
                                                    .sparse_gradients = std::move(sparse_gradients),
                                                    .interactions = std::move(interactions),
                                                    .interaction_gradients = std::move(interaction_gradients)});
}

}  // namespace sparrow
