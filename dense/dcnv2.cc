#include "dense/dcnv2.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "dense/batch_buffer.h"
#include "dense/cross.h"
#include "dense/mlp.h"
#include "dense/model_checks.h"
#include "dense/parameters.h"
#include "dense/row_blocks.h"

namespace sparrow {
namespace {

// A cross layer's parameters and what it holds of the current batch.
struct CrossLayer {
  CrossLayer(size_t index, int64_t in, int64_t rank, ParameterLayout* layout)
      : projected(rank), factor(in), out(in), projected_gradients(rank), factor_gradients(in), b_gradients(in) {
    const uint64_t cols = static_cast<uint64_t>(in);
    const uint64_t rows = static_cast<uint64_t>(rank);
    const double stddev = std::sqrt(2.0 / static_cast<double>(in + rank));
    const auto add = [&](absl::string_view name, std::vector<uint64_t> shape, double deviation) {
      return layout->parameters()[layout->Add(absl::StrCat("cross.", index, ".", name), std::move(shape), deviation)];
    };
    v = add("v", {rows, cols}, stddev);
    w = add("w", {cols, rows}, stddev);
    b = add("b", {cols}, 0);
  }

  CrossWeights weights(std::span<const float> flat) const {
    return {.v = MatrixOf(v, flat), .w = MatrixOf(w, flat), .b = ElementsOf(b, flat)};
  }
  CrossActivations activations(int64_t begin, int64_t end) {
    return {.projected = projected.Rows(begin, end), .factor = factor.Rows(begin, end)};
  }
  CrossGradients intermediate(int64_t begin, int64_t end) {
    return {.projected = projected_gradients.Rows(begin, end), .factor = factor_gradients.Rows(begin, end)};
  }

  Parameter v, w, b;
  BatchBuffer projected, factor, out;
  BatchBuffer projected_gradients, factor_gradients;
  BatchBuffer b_gradients;  // [blocks, in]
};

void CopyRows(ConstMatrix from, Matrix to) {
  for (int64_t i = 0; i < from.rows; ++i) std::copy_n(from.row(i), from.cols, to.row(i));
}

class Dcnv2 final : public Model {
 public:
  // dense_inputs: columns of x0 before the embeddings: the bottom's outputs, or the dense columns where it is absent.
  Dcnv2(int64_t dense_columns, int64_t dense_inputs, int64_t sparse_inputs, Mlp bottom, std::vector<CrossLayer> cross,
        Mlp top, const ParameterLayout& layout, uint64_t seed)
      : dense_columns_(dense_columns),
        dense_inputs_(dense_inputs),
        sparse_inputs_(sparse_inputs),
        bottom_(std::move(bottom)),
        cross_(std::move(cross)),
        top_(std::move(top)),
        x0_(dense_inputs + sparse_inputs),
        x_gradients_(dense_inputs + sparse_inputs),
        x0_gradients_(dense_inputs + sparse_inputs) {
    parameters_ = layout.parameters();
    weights_.resize(layout.size());
    gradients_.resize(layout.size());
    layout.Initialize(seed, weights_);
  }

  void Forward(std::span<const float> dense, std::span<const float> sparse, std::span<float> logits) override {
    blocks_ = RowBlocks::Of(static_cast<int64_t>(logits.size()));
    dense_ = AsMatrix(dense, blocks_.rows, dense_columns_);
    const ConstMatrix embeddings = AsMatrix(sparse, blocks_.rows, sparse_inputs_);
    bottom_.BeginForward(blocks_);
    x0_.Resize(blocks_.rows);
    for (CrossLayer& layer : cross_) {
      for (BatchBuffer* buffer : {&layer.projected, &layer.factor, &layer.out}) buffer->Resize(blocks_.rows);
    }
    top_.BeginForward(blocks_);
    blocks_.ForEach([&](int64_t, int64_t begin, int64_t end) {
      const Matrix x0 = x0_.Rows(begin, end);
      ConstMatrix first = dense_.Rows(begin, end);
      if (bottom_.outputs() > 0) first = bottom_.ForwardBlock(weights_, first, begin);
      CopyRows(first, x0.Columns(0, dense_inputs_));
      CopyRows(embeddings.Rows(begin, end), x0.Columns(dense_inputs_, x0.cols));
      ConstMatrix x = x0;
      for (CrossLayer& layer : cross_) {
        const Matrix out = layer.out.Rows(begin, end);
        CrossForwardCpu(layer.weights(weights_), x0, x, layer.activations(begin, end), out);
        x = out;
      }
      const ConstMatrix out = top_.ForwardBlock(weights_, x, begin);
      for (int64_t i = 0; i < out.rows; ++i) logits[begin + i] = *out.row(i);
    });
  }

  void Backward(std::span<const float> logit_gradients, std::span<float> sparse_gradients) override {
    CHECK_EQ(static_cast<int64_t>(logit_gradients.size()), blocks_.rows);
    const Matrix to_sparse = AsMatrix(sparse_gradients, blocks_.rows, sparse_inputs_);
    top_.BeginBackward(blocks_);
    x_gradients_.Resize(blocks_.rows);
    x0_gradients_.Resize(blocks_.rows);
    for (CrossLayer& layer : cross_) {
      layer.projected_gradients.Resize(blocks_.rows);
      layer.factor_gradients.Resize(blocks_.rows);
      layer.b_gradients.Resize(blocks_.count);
    }
    bottom_.BeginBackward(blocks_);
    blocks_.ForEach([&](int64_t block, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) *top_.output_gradients().row(i) = logit_gradients[i];
      const Matrix to_x = x_gradients_.Rows(begin, end);
      top_.BackwardBlock(weights_, block, begin, end, to_x);
      BackwardCross(block, begin, end, to_x);
      CopyRows(to_x.Columns(dense_inputs_, to_x.cols), to_sparse.Rows(begin, end));
      if (bottom_.outputs() > 0) {
        CopyRows(to_x.Columns(0, dense_inputs_), bottom_.output_gradients().Rows(begin, end));
        bottom_.BackwardBlock(weights_, block, begin, end, /*x_gradients=*/{});
      }
    });
    ConstMatrix x = x0_.all();
    for (CrossLayer& layer : cross_) {
      CrossBackwardWeightsCpu(x, layer.projected.all(), layer.intermediate(0, blocks_.rows),
                              MatrixOf(layer.v, std::span(gradients_)), MatrixOf(layer.w, std::span(gradients_)));
      ColumnSums(layer.b_gradients.all(), ElementsOf(layer.b, std::span(gradients_)));
      x = layer.out.all();
    }
    top_.BackwardWeights(x, gradients_);
    bottom_.BackwardWeights(dense_, gradients_);
  }

 private:
  // to_x: on entry the gradients by the last cross layer's output, on return those by x0 through all its uses.
  void BackwardCross(int64_t block, int64_t begin, int64_t end, Matrix to_x) {
    const Matrix to_x0 = x0_gradients_.Rows(begin, end);
    for (int64_t i = 0; i < to_x0.rows; ++i) std::fill_n(to_x0.row(i), to_x0.cols, 0.0f);
    for (size_t l = cross_.size(); l-- > 0;) {
      CrossLayer& layer = cross_[l];
      CrossBackwardInputCpu(
          layer.weights(weights_), x0_.Rows(begin, end), layer.activations(begin, end), to_x, to_x0,
          layer.intermediate(begin, end),
          {layer.b_gradients.Rows(block, block + 1).data, static_cast<size_t>(layer.b_gradients.cols())});
    }
    for (int64_t i = 0; i < to_x.rows; ++i) {
      float* __restrict sum = to_x.row(i);
      const float* __restrict direct = to_x0.row(i);
      for (int64_t j = 0; j < to_x.cols; ++j) sum[j] += direct[j];
    }
  }

  const int64_t dense_columns_;
  const int64_t dense_inputs_;
  const int64_t sparse_inputs_;
  Mlp bottom_;
  std::vector<CrossLayer> cross_;
  Mlp top_;

  // Of the last Forward.
  RowBlocks blocks_;
  ConstMatrix dense_;
  BatchBuffer x0_;
  BatchBuffer x_gradients_;
  BatchBuffer x0_gradients_;
};

constexpr uint32_t kCrossLayersMax = 100;
constexpr uint32_t kCrossRankMax = 1 << 20;
constexpr uint64_t kInputsMax = 1 << 24;

absl::Status CheckCross(const v1::Dcnv2& config) {
  if (config.cross_layers() == 0 || config.cross_layers() > kCrossLayersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.dcnv2.cross_layers is ", config.cross_layers(), ", expected 1 to ", kCrossLayersMax));
  }
  if (config.cross_rank() == 0 || config.cross_rank() > kCrossRankMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.dcnv2.cross_rank is ", config.cross_rank(), ", expected 1 to ", kCrossRankMax));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeDcnv2(const v1::Dcnv2& config, const ModelShape& shape, uint64_t seed) {
  const std::vector<uint32_t> bottom_layers(config.bottom().begin(), config.bottom().end());
  const std::vector<uint32_t> top_layers(config.top().begin(), config.top().end());
  RETURN_IF_ERROR(CheckBottom("model.dcnv2.bottom", bottom_layers, shape));
  RETURN_IF_ERROR(CheckTop("model.dcnv2.top", top_layers));
  RETURN_IF_ERROR(CheckCross(config));
  const uint64_t dense_inputs = bottom_layers.empty() ? shape.dense_columns : bottom_layers.back();
  uint64_t sparse_inputs = 0;
  for (uint32_t dim : shape.feature_dims) sparse_inputs += dim;
  const uint64_t inputs = dense_inputs + sparse_inputs;
  if (inputs == 0) return absl::InvalidArgumentError("model.dcnv2: the data has no dense columns and no features");
  if (inputs > kInputsMax) {
    return absl::InvalidArgumentError(absl::StrCat("model.dcnv2: the features and the bottom's output have ", inputs,
                                                   " columns together, the limit is ", kInputsMax));
  }
  ParameterLayout layout;
  Mlp bottom("bottom", shape.dense_columns, bottom_layers, Activation::kRelu, &layout);
  std::vector<CrossLayer> cross;
  for (uint32_t i = 0; i < config.cross_layers(); ++i) {
    cross.emplace_back(i, static_cast<int64_t>(inputs), config.cross_rank(), &layout);
  }
  Mlp top("top", static_cast<uint32_t>(inputs), top_layers, Activation::kIdentity, &layout);
  RETURN_IF_ERROR(CheckParameterCount("model.dcnv2", layout));
  return std::make_unique<Dcnv2>(shape.dense_columns, dense_inputs, sparse_inputs, std::move(bottom), std::move(cross),
                                 std::move(top), layout, seed);
}

}  // namespace sparrow
