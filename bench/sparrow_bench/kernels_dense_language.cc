// What a language model has beside products and attention, for `sparrow-bench kernels`: a batch of 64 x 1,024 tokens,
// of the widths of GPT-2's smallest and largest model. Bytes are counted as in the kernels' comments.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "bench/sparrow_bench/kernels_dense.h"
#include "bench/support/zipf.h"
#include "dense/column_sums.h"
#include "dense/gelu_gpu.h"
#include "dense/layer_norm_gpu.h"
#include "dense/softmax_loss_gpu.h"
#include "dense/token_embedding_gpu.h"

namespace sparrow::bench {
namespace {

constexpr int64_t kLength = 1024;
constexpr int64_t kVocabulary = 50257;
constexpr int64_t kPaddedVocabulary = 50304;

struct TypeAndWidth {
  Precision precision;
  int64_t width;
};
constexpr TypeAndWidth kMatrices[] = {{kBf16, 768}, {kBf16, 1600}, {kFp16, 768}, {kFp32, 768}, {kFp32, 1600}};
constexpr int64_t kOddWidth = 1001;  // Rows of no whole packs.

DeviceBuffer<DropoutStep> Step(const Stream& stream) {
  return Upload(std::vector<DropoutStep>{{.seed = 1, .first_sequence = 0}}, stream);
}

void MeasureLayerNormOf(Precision precision, int64_t width, bool whole, KernelBench* bench) {
  const double row = static_cast<double>(ElementBytes(precision)) * static_cast<double>(width);
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const auto make = [&] { return random.Make(precision, kBatch, width); };
  const OwnedMatrix residual = make(), branch = make(), sum = make(), y = make();
  const OwnedMatrix weight = random.Make(precision, 1, width), bias = random.Make(precision, 1, width);
  const OwnedMatrix w_gradients = random.Make(kFp32, 1, width), b_gradients = random.Make(kFp32, 1, width);
  DeviceBuffer<RowMoments> moments = Allocate<RowMoments>(kBatch);
  DeviceBuffer<float> workspace = Allocate<float>(LayerNormWorkspaceFloats(kBatch, width));
  const DeviceBuffer<DropoutStep> step = Step(stream);
  const DropoutGpu dropout = DropoutGpu::Of(0.1, step.data(), 1, static_cast<uint64_t>(kLength * width));
  const std::string passes = whole ? "" : "_in_passes";

  const char* const forward = whole ? "AddLayerNormForwardKernel" : "AddLayerNormForwardAnyKernel";
  bench->Measure(CallOf(forward, "layer_norm" + passes, precision, y, 2 * row + 8, [&] {
    AddLayerNormForwardGpu(precision, residual.view, {}, {}, {}, weight.view.data, bias.view.data, moments.data(),
                           y.view, stream);
  }));
  for (const bool drops : {false, true}) {
    bench->Measure(CallOf(
        forward, (drops ? "add_dropped_layer_norm" : "add_layer_norm") + passes, precision, y, 4 * row + 8, [&, drops] {
          AddLayerNormForwardGpu(precision, residual.view, branch.view, drops ? dropout : DropoutGpu(), sum.view,
                                 weight.view.data, bias.view.data, moments.data(), y.view, stream);
        }));
  }

  const char* const backward = whole ? "LayerNormBackwardKernel PartialSumsKernel"
                                     : "LayerNormParametersKernel LayerNormBackwardAnyKernel PartialSumsKernel";
  LayerNormGradients gradients{
      .x_gradients = sum.view, .weight_gradients = w_gradients.floats(), .bias_gradients = b_gradients.floats()};
  const auto measure = [&](const std::string& name, double matrices, const LayerNormGradients& of) {
    bench->Measure(CallOf(backward, name + passes, precision, sum, matrices * row + 8, [&] {
      LayerNormBackwardGpu(precision, y.view, residual.view, weight.view.data, moments.data(), of, workspace.data(),
                           stream);
    }));
  };
  measure("layer_norm_backward", 3, gradients);
  gradients.write = Write::kAdd;
  measure("layer_norm_backward_adding", 4, gradients);
  gradients.branch_gradients = branch.view;
  gradients.dropout = dropout;
  measure("layer_norm_backward_adding_dropped", 5, gradients);
}

}  // namespace

void MeasureLayerNorm(KernelBench* bench) {
  for (const auto& [precision, width] : kMatrices) MeasureLayerNormOf(precision, width, /*whole=*/true, bench);
  MeasureLayerNormOf(kBf16, kOddWidth, /*whole=*/false, bench);
}

void MeasureGelu(KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  for (const auto& [precision, model_width] : kMatrices) {
    if (model_width != 768) continue;
    const int64_t width = 4 * model_width;
    const double row = static_cast<double>(ElementBytes(precision)) * static_cast<double>(width);
    const OwnedMatrix x = random.Make(precision, kBatch, width), y = random.Make(precision, kBatch, width);
    const OwnedMatrix sums = random.Make(kFp32, 1, width);
    DeviceBuffer<float> workspace = Allocate<float>(ColumnSumsWorkspaceFloats(kBatch, width));
    bench->Measure(CallOf("GeluForwardKernel", "gelu", precision, y, 2 * row,
                          [&, precision = precision] { GeluForwardGpu(precision, x.view, y.view, stream); }));
    for (const bool bias : {false, true}) {
      bench->Measure(CallOf(
          bias ? "GeluBackwardKernel PartialSumsKernel" : "GeluBackwardKernel",
          bias ? "gelu_backward_with_bias" : "gelu_backward", precision, y, 3 * row, [&, bias, precision = precision] {
            GeluBackwardGpu(precision, x.view, y.view, bias ? sums.floats() : nullptr, workspace.data(), stream);
          }));
    }
    KernelCall column_sums = CallOf(
        "ColumnSumsKernel PartialSumsKernel", "column_sums", precision, x, row,
        [&, precision = precision] { ColumnSumsAddGpu(precision, x.view, sums.floats(), workspace.data(), stream); });
    column_sums.result = sums.memory.data();
    column_sums.result_bytes = sums.memory.size();
    bench->Measure(column_sums);
  }
}

void MeasureTokenEmbedding(KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const Zipf zipf(kVocabulary, 1.0);  // The most frequent token comes in 9 % of places.
  std::vector<uint16_t> host(kBatch);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint16_t>(zipf.Rank(RandomUniform(1, i)));
  const auto distinct = static_cast<double>(std::set<uint16_t>(host.begin(), host.end()).size());
  const DeviceBuffer<uint16_t> tokens = Upload(host, stream);
  for (const auto& [precision, width] : kMatrices) {
    const double row = static_cast<double>(ElementBytes(precision)) * static_cast<double>(width);
    const OwnedMatrix token_vectors = random.Make(precision, kPaddedVocabulary, width);
    const OwnedMatrix position_vectors = random.Make(precision, kLength, width);
    const OwnedMatrix x = random.Make(precision, kBatch, width);
    const OwnedMatrix token_gradients = random.Make(kFp32, kPaddedVocabulary, width);
    const OwnedMatrix position_gradients = random.Make(kFp32, kLength, width);
    std::optional<TokenEmbeddingBackwardGpu> backward = TokenEmbeddingBackwardGpu::Make(kBatch, width, stream);
    CHECK(backward.has_value()) << "no GPU memory for sums of " << kBatch << " x " << width;
    // Each token's vector is read from GPU memory once, as most are: caches have the frequent ones.
    const double vectors = (distinct + kLength) * static_cast<double>(width);
    KernelCall forward =
        CallOf("TokenEmbeddingForwardKernel", "token_embedding", precision, x, row + 2, [&, precision = precision] {
          TokenEmbeddingForwardGpu(precision, tokens.data(), kLength, token_vectors.view, position_vectors.view, {},
                                   x.view, stream);
        });
    forward.bytes += static_cast<double>(ElementBytes(precision)) * vectors;
    bench->Measure(forward);
    if (precision == kBf16 && width == 768) {
      bench->Measure({.name = "token_sort",
                      .kernels = "DeviceRadixSort",
                      .type = "uint16",
                      .rows = kBatch,
                      .bytes = 12.0 * kBatch,
                      .run = [&] { backward->Group(tokens.data(), kBatch, stream); },
                      .result = tokens.data(),
                      .result_bytes = tokens.size() * sizeof(uint16_t)});
    }
    backward->Group(tokens.data(), kBatch, stream);
    KernelCall gradients =
        CallOf("TokenTilesKernel TokenRunsKernel PositionGradientsKernel", "token_embedding_backward", precision,
               token_gradients, 0, [&, precision = precision] {
                 backward->Run(precision, kLength, {}, x.view, token_gradients.view, position_gradients.view, stream);
               });
    gradients.rows = kBatch;
    gradients.bytes = 2 * row * kBatch + 8 * vectors;
    bench->Measure(gradients);
  }
}

void MeasureSoftmaxLoss(KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  for (const Precision precision : {kBf16, kFp16, kFp32}) {
    constexpr int64_t kRows = 16384;
    const double row = static_cast<double>(ElementBytes(precision)) * kPaddedVocabulary;
    const OwnedMatrix logits = random.Make(precision, kRows, kPaddedVocabulary);
    std::vector<uint16_t> host(kRows);
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint16_t>(RandomBits(1, i) % kVocabulary);
    const DeviceBuffer<uint16_t> targets = Upload(host, stream);
    const DeviceBuffer<float> scale = Upload(std::vector<float>{1}, stream);
    DeviceBuffer<float> row_losses = Allocate<float>(kRows);
    DeviceBuffer<double> loss = Upload(std::vector<double>{0}, stream);
    const char* const kernels = "SoftmaxLossKernel SumLossesKernel";
    bench->Measure(CallOf(kernels, "softmax_loss", precision, logits, row + 6, [&] {
      SoftmaxLossGpu(precision, logits.view, targets.data(), kVocabulary, /*gradient_scale=*/nullptr, row_losses.data(),
                     loss.data(), stream);
    }));
    bench->Measure(CallOf(kernels, "softmax_loss_and_gradients", precision, logits, 2 * row + 6, [&] {
      SoftmaxLossGpu(precision, logits.view, targets.data(), kVocabulary, scale.data(), row_losses.data(), loss.data(),
                     stream);
    }));
  }
}

}  // namespace sparrow::bench
