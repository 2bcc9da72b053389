#include "dense/dlrm.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "dense/batch_buffer.h"
#include "dense/interaction.h"
#include "dense/mlp.h"
#include "dense/model_checks.h"
#include "dense/parameters.h"
#include "dense/row_blocks.h"

namespace sparrow {
namespace {

class Dlrm final : public Model {
 public:
  Dlrm(int64_t dense_columns, const InteractionShape& interaction, Mlp bottom, Mlp top, const ParameterLayout& layout,
       uint64_t seed)
      : dense_columns_(dense_columns),
        interaction_(interaction),
        bottom_(std::move(bottom)),
        top_(std::move(top)),
        interactions_(interaction.outputs()),
        interaction_gradients_(interaction.outputs()) {
    parameters_ = layout.parameters();
    weights_.resize(layout.size());
    gradients_.resize(layout.size());
    layout.Initialize(seed, weights_);
  }

  void Forward(std::span<const float> dense, std::span<const float> sparse, std::span<float> logits) override {
    blocks_ = RowBlocks::Of(static_cast<int64_t>(logits.size()));
    dense_ = AsMatrix(dense, blocks_.rows, dense_columns_);
    sparse_ = AsMatrix(sparse, blocks_.rows, interaction_.features * interaction_.dim);
    bottom_.BeginForward(blocks_);
    interactions_.Resize(blocks_.rows);
    top_.BeginForward(blocks_);
    blocks_.ForEach([&](int64_t, int64_t begin, int64_t end) {
      ConstMatrix bottom;
      if (has_bottom()) bottom = bottom_.ForwardBlock(weights_, dense_.Rows(begin, end), begin);
      const Matrix interaction = interactions_.Rows(begin, end);
      InteractionForwardCpu(interaction_, bottom, sparse_.Rows(begin, end), interaction);
      const ConstMatrix out = top_.ForwardBlock(weights_, interaction, begin);
      for (int64_t i = 0; i < out.rows; ++i) logits[begin + i] = *out.row(i);
    });
  }

  void Backward(std::span<const float> logit_gradients, std::span<float> sparse_gradients) override {
    CHECK_EQ(static_cast<int64_t>(logit_gradients.size()), blocks_.rows);
    const Matrix to_sparse = AsMatrix(sparse_gradients, blocks_.rows, sparse_.cols);
    top_.BeginBackward(blocks_);
    interaction_gradients_.Resize(blocks_.rows);
    bottom_.BeginBackward(blocks_);
    blocks_.ForEach([&](int64_t block, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) *top_.output_gradients().row(i) = logit_gradients[i];
      const Matrix interaction = interaction_gradients_.Rows(begin, end);
      top_.BackwardBlock(weights_, block, begin, end, interaction);
      ConstMatrix bottom;
      Matrix to_bottom;
      if (has_bottom()) {
        bottom = bottom_.output().Rows(begin, end);
        to_bottom = bottom_.output_gradients().Rows(begin, end);
      }
      InteractionBackwardCpu(interaction_, bottom, sparse_.Rows(begin, end), interaction, to_bottom,
                             to_sparse.Rows(begin, end));
      bottom_.BackwardBlock(weights_, block, begin, end, /*x_gradients=*/{});
    });
    top_.BackwardWeights(interactions_.all(), gradients_);
    bottom_.BackwardWeights(dense_, gradients_);
  }

 private:
  bool has_bottom() const { return interaction_.bottom_cols > 0; }

  const int64_t dense_columns_;
  const InteractionShape interaction_;
  Mlp bottom_;
  Mlp top_;

  // Of the last Forward.
  RowBlocks blocks_;
  ConstMatrix dense_;
  ConstMatrix sparse_;
  BatchBuffer interactions_;
  BatchBuffer interaction_gradients_;
};

}  // namespace

absl::StatusOr<InteractionShape> ShapeOfInteraction(const v1::Dlrm& config, const ModelShape& shape) {
  InteractionShape interaction{.features = static_cast<int64_t>(shape.feature_dims.size())};
  if (!shape.feature_dims.empty()) interaction.dim = shape.feature_dims[0];
  for (size_t i = 0; i < shape.feature_dims.size(); ++i) {
    if (shape.feature_dims[i] != interaction.dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.dlrm: feature ", i, " has dimension ", shape.feature_dims[i], ", but feature 0 has ",
                       interaction.dim, "; the dot interaction needs equal ones (dcnv2 takes different ones)"));
    }
  }
  if (config.bottom_size() > 0) {
    const uint32_t last = config.bottom(config.bottom_size() - 1);
    if (!shape.feature_dims.empty() && last != interaction.dim) {
      return absl::InvalidArgumentError(absl::StrCat("model.dlrm.bottom ends in ", last,
                                                     ", but the features have dimension ", interaction.dim,
                                                     "; the dot interaction needs equal ones"));
    }
    interaction.dim = last;
    interaction.bottom_cols = last;
  }
  if (interaction.outputs() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("model.dlrm: ", interaction.features,
                                                   " features and no dense columns leave nothing to interact; expected "
                                                   "two features or a dense column"));
  }
  return interaction;
}

absl::StatusOr<std::unique_ptr<Model>> MakeDlrm(const v1::Dlrm& config, const ModelShape& shape, uint64_t seed) {
  const std::vector<uint32_t> bottom_layers(config.bottom().begin(), config.bottom().end());
  const std::vector<uint32_t> top_layers(config.top().begin(), config.top().end());
  RETURN_IF_ERROR(CheckBottom("model.dlrm.bottom", bottom_layers, shape));
  if (config.bottom_size() == 0 && shape.dense_columns > 0) {
    return absl::InvalidArgumentError(absl::StrCat("model.dlrm.bottom is empty, but the data has ", shape.dense_columns,
                                                   " dense columns; add layers, or ignore the columns"));
  }
  RETURN_IF_ERROR(CheckTop("model.dlrm.top", top_layers));
  ASSIGN_OR_RETURN(const InteractionShape interaction, ShapeOfInteraction(config, shape));
  ParameterLayout layout;
  Mlp bottom("bottom", shape.dense_columns, bottom_layers,
             config.bottom_output() == v1::Dlrm::LINEAR ? Activation::kIdentity : Activation::kRelu, &layout);
  Mlp top("top", static_cast<uint32_t>(interaction.outputs()), top_layers, Activation::kIdentity, &layout);
  RETURN_IF_ERROR(CheckParameterCount("model.dlrm", layout));
  return std::make_unique<Dlrm>(shape.dense_columns, interaction, std::move(bottom), std::move(top), layout, seed);
}

}  // namespace sparrow
