#include "dense/mlp.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "dense/linear.h"

namespace sparrow {

Mlp::Mlp(absl::string_view prefix, uint32_t inputs, std::span<const uint32_t> layer_outputs, Activation last,
         ParameterLayout* layout) {
  uint64_t in = inputs;
  for (size_t i = 0; i < layer_outputs.size(); ++i) {
    const uint64_t out = layer_outputs[i];
    const size_t weight =
        layout->Add(absl::StrCat(prefix, ".", i, ".weight"), {out, in}, std::sqrt(2.0 / static_cast<double>(in + out)));
    const size_t bias =
        layout->Add(absl::StrCat(prefix, ".", i, ".bias"), {out}, std::sqrt(1.0 / static_cast<double>(out)));
    layers_.push_back({.weight = layout->parameters()[weight],
                       .bias = layout->parameters()[bias],
                       .activation = i + 1 == layer_outputs.size() ? last : Activation::kRelu,
                       .activations = BatchBuffer(out),
                       .gradients = BatchBuffer(out),
                       .bias_gradients = BatchBuffer(out)});
    in = out;
  }
}

void Mlp::BeginForward(const RowBlocks& blocks) {
  for (Layer& layer : layers_) layer.activations.Resize(blocks.rows);
}

ConstMatrix Mlp::ForwardBlock(std::span<const float> weights, ConstMatrix x, int64_t begin) {
  for (Layer& layer : layers_) {
    const Matrix y = layer.activations.Rows(begin, begin + x.rows);
    LinearForwardCpu(x, MatrixOf(layer.weight, weights), ElementsOf(layer.bias, weights), layer.activation, y);
    x = y;
  }
  return x;
}

void Mlp::BeginBackward(const RowBlocks& blocks) {
  for (Layer& layer : layers_) {
    layer.gradients.Resize(blocks.rows);
    layer.bias_gradients.Resize(blocks.count);
  }
}

void Mlp::BackwardBlock(std::span<const float> weights, int64_t block, int64_t begin, int64_t end, Matrix x_gradients) {
  for (size_t i = layers_.size(); i-- > 0;) {
    Layer& layer = layers_[i];
    const Matrix gradients = layer.gradients.Rows(begin, end);
    BiasActivationBackwardCpu(
        layer.activation, layer.activations.Rows(begin, end), gradients,
        {layer.bias_gradients.Rows(block, block + 1).data, static_cast<size_t>(layer.bias_gradients.cols())});
    const Matrix in = i > 0 ? layers_[i - 1].gradients.Rows(begin, end) : x_gradients;
    if (in.data != nullptr) ProductBackwardInputCpu(gradients, MatrixOf(layer.weight, weights), Write::kOverwrite, in);
  }
}

void Mlp::BackwardWeights(ConstMatrix x, std::span<float> gradients) {
  for (Layer& layer : layers_) {
    ProductBackwardWeightsCpu(layer.gradients.all(), x, MatrixOf(layer.weight, gradients));
    ColumnSums(layer.bias_gradients.all(), ElementsOf(layer.bias, gradients));
    x = layer.activations.all();
  }
}

void ColumnSums(ConstMatrix values, std::span<float> sums) {
  CHECK_EQ(static_cast<int64_t>(sums.size()), values.cols);
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (int64_t i = 0; i < values.rows; ++i) {
    for (int64_t j = 0; j < values.cols; ++j) sums[j] += values.row(i)[j];
  }
}

}  // namespace sparrow
