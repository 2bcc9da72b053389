// The dense kernels of `sparrow-bench kernels` but for products and the interaction, at a large size each. Bytes are
// counted as in the kernels' comments.

#include "bench/sparrow_bench/kernels_dense.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dense/activation_gpu.h"
#include "dense/add_floats.h"
#include "dense/cast_gpu.h"
#include "dense/cross_gpu.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/gradient_norm_gpu.h"
#include "dense/last_layer_gpu.h"
#include "dense/loss_scale_gpu.h"
#include "dense/step_gate_gpu.h"
#include "dense/step_totals_gpu.h"

namespace sparrow::bench {
namespace {

DeviceBuffer<DenseStepOptions> StepOptions(const Stream& stream) {
  return Upload(std::vector<DenseStepOptions>{{.gradient_scale = 0.5, .learning_rate_factor = 0.9}}, stream);
}

// Layers of `columns` inputs; in one pass over them, or in two where they are too many.
void MeasureLastLayerOf(Precision precision, int64_t columns, bool two_passes, KernelBench* bench) {
  const double row = static_cast<double>(ElementBytes(precision)) * static_cast<double>(columns);
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix h = random.Make(precision, kBatch, columns), gradients = random.Make(precision, kBatch, columns);
  const OwnedMatrix w = random.Make(kFp32, 1, columns), b = random.Make(kFp32, 1, 1);
  const OwnedMatrix labels = random.Make(kFp32, kBatch, 1), logits = random.Make(kFp32, kBatch, 1);
  const OwnedMatrix w_gradients = random.Make(kFp32, 1, columns), b_gradients = random.Make(kFp32, 1, 1);
  const DeviceBuffer<uint32_t> samples = Upload(std::vector<uint32_t>{kBatch}, stream);
  const DeviceBuffer<float> scale = Upload(std::vector<float>{0.5f}, stream);
  DeviceBuffer<double> loss = Allocate<double>(1);
  DeviceBuffer<char> workspace = Allocate<char>(LastLayerWorkspaceBytes(kBatch, columns));
  const LastLayer layer{w.floats(), b.floats(), true};
  const std::string passes = two_passes ? "_in_two_passes" : "";
  KernelCall forward =
      CallOf(two_passes ? "LastLayerRowsKernel" : "LastLayerForwardKernel", "last_layer_forward" + passes, precision,
             logits, row + 4, [&] { LastLayerForwardGpu(precision, h.view, layer, logits.floats(), stream); });
  forward.dim = static_cast<uint64_t>(columns);
  bench->Measure(forward);
  bench->Measure(CallOf(two_passes ? "LastLayerRowsKernel LastLayerColumnsKernel LastLayerSumKernel"
                                   : "LastLayerLossKernel LastLayerSumKernel",
                        "last_layer_loss" + passes, precision, gradients, 2 * row + 8, [&] {
                          LastLayerLossGpu(precision, h.view, layer, labels.floats(), samples.data(), scale.data(),
                                           logits.floats(), gradients.view, w_gradients.floats(), b_gradients.floats(),
                                           loss.data(), workspace.data(), stream);
                        }));
}

}  // namespace

void MeasureOptimizers(KernelBench* bench) {
  const Stream& stream = bench->stream();
  DeviceBuffer<float> weights = Allocate<float>(kParameters), gradients = Allocate<float>(kParameters);
  DeviceBuffer<uint16_t> copy = Allocate<uint16_t>(kParameters);
  const DeviceBuffer<DenseStepOptions> options = StepOptions(stream);
  gradients.Fill(0x3d, stream);  // Every element 0.0464: not zero, finite.
  const DenseRule adam = {
      .kind = DenseOptimizerKind::kAdam, .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  DenseRule adamw = adam;
  adamw.weight_decay = 0.01;
  DenseRule lamb = adamw;
  lamb.kind = DenseOptimizerKind::kLamb;
  const Slice tensor{0, static_cast<uint64_t>(kParameters)};
  struct Rule {
    const char* name;
    WeightCopy copy;
    DenseRule rule;
  };
  const Rule rules[] = {
      {"sgd", WeightCopy::kBfloat16, {.kind = DenseOptimizerKind::kSgd, .learning_rate = 1e-3, .weight_decay = 0.01}},
      {"momentum",
       WeightCopy::kBfloat16,
       {.kind = DenseOptimizerKind::kMomentum, .learning_rate = 1e-3, .momentum = 0.9}},
      {"adagrad", WeightCopy::kBfloat16, {.kind = DenseOptimizerKind::kAdagrad, .learning_rate = 1e-3, .eps = 1e-8}},
      {"adam", WeightCopy::kBfloat16, adam},
      {"adamw", WeightCopy::kBfloat16, adamw},
      {"lamb", WeightCopy::kBfloat16, lamb},
      {"adam_without_copy", WeightCopy::kNone, adam},
      {"adam_fp16_copy", WeightCopy::kFloat16, adam}};
  for (const Rule& r : rules) {
    weights.Fill(0x3e, stream);  // 0.186
    std::optional<DenseOptimizerGpu> optimizer = DenseOptimizerGpu::Make(r.rule, kParameters, stream, {&tensor, 1});
    CHECK(optimizer.has_value()) << "no GPU memory for the state of " << kParameters << " parameters";
    const DenseOptimizerGpu::StepArguments arguments{.weights = weights.data(),
                                                     .gradients = gradients.data(),
                                                     .copy_type = r.copy,
                                                     .copy = r.copy == WeightCopy::kNone ? nullptr : copy.data(),
                                                     .options = options.data()};
    const bool is_lamb = r.rule.kind == DenseOptimizerKind::kLamb;
    const int moved = is_lamb ? 40 : 12 + 8 * DenseStates(r.rule.kind), copied = r.copy == WeightCopy::kNone ? 0 : 2;
    bench->Measure({.name = std::string("dense_") + r.name,
                    .kernels = is_lamb ? "LambMomentsKernel LambApplyKernel" : "StepKernel",
                    .rows = kParameters,
                    .bytes = static_cast<double>(kParameters) * (moved + copied),
                    .run = [&] { optimizer->Step(arguments, stream); },
                    .result = weights.data(),
                    .result_bytes = weights.size() * sizeof(float)});
  }
  std::optional<DenseOptimizerGpu> optimizer = DenseOptimizerGpu::Make(adam, kParameters, stream);
  CHECK(optimizer.has_value()) << "no GPU memory for the state of " << kParameters << " parameters";
  bench->Measure({.name = "reset_adam",
                  .kernels = "FillKernel SetUpdatesKernel",
                  .rows = kParameters,
                  .bytes = static_cast<double>(kParameters) * 8,
                  .run = [&] { optimizer->Reset(stream); },
                  .result = optimizer->states()[0].data(),
                  .result_bytes = kParameters * sizeof(float)});
}

void MeasureNorm(KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix gradients = random.Make(kFp32, kParameters, 1);
  const DeviceBuffer<DenseStepOptions> options = StepOptions(stream);
  std::optional<DeviceBuffer<GridSums>> sums = MakeGridSums(stream);
  CHECK(sums.has_value()) << "no GPU memory for sums";
  DeviceBuffer<GradientClip> clip = Allocate<GradientClip>(1);
  bench->Measure({.name = "gradient_norm",
                  .kernels = "GradientNormKernel",
                  .rows = kParameters,
                  .bytes = 4.0 * kParameters,
                  .run =
                      [&] {
                        GradientNormGpu(gradients.floats(), kParameters, options.data(), {.max_norm = 1}, sums->data(),
                                        clip.data(), stream);
                      },
                  .result = clip.data(),
                  .result_bytes = sizeof(GradientClip)});
  DeviceBuffer<float> added = Allocate<float>(kParameters);
  bench->Measure({.name = "add_floats",
                  .kernels = "AddFloatsKernel",
                  .rows = kParameters,
                  .bytes = 12.0 * kParameters,
                  .run =
                      [&] {
                        added.Fill(0, stream);
                        AddFloatsGpu(gradients.floats(), kParameters, added.data(), stream);
                      },
                  .result = added.data(),
                  .result_bytes = kParameters * sizeof(float)});
  DeviceBuffer<double> squares = Allocate<double>(1);
  bench->Measure({.name = "gradient_norm_of_a_piece",
                  .kernels = "AddSquaresKernel ClipKernel",
                  .rows = kParameters,
                  .bytes = 4.0 * kParameters,
                  .run =
                      [&] {
                        squares.Fill(0, stream);
                        AddSquaresGpu(gradients.floats(), kParameters, sums->data(), squares.data(), stream);
                        ClipGpu(squares.data(), options.data(), {.max_norm = 1}, clip.data(), stream);
                      },
                  .result = clip.data(),
                  .result_bytes = sizeof(GradientClip)});
}

void MeasureLossScale(KernelBench* bench) {
  constexpr int64_t kPooled = 26 * 128;
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix gradients = random.Make(kFp16, kBatch, kPooled);
  DeviceBuffer<uint64_t> count = Upload(std::vector<uint64_t>{0}, stream);
  KernelCall look = CallOf("CountNotFiniteKernel", "count_not_finite", kFp16, gradients, 2 * kPooled,
                           [&] { CountNotFiniteGpu(gradients.view, kFp16, count.data(), stream); });
  look.result = count.data();
  look.result_bytes = sizeof(uint64_t);
  bench->Measure(look);
  const OwnedMatrix sums = random.Make(kFp32, kParameters, 1);
  const DeviceBuffer<float> scale = Upload(std::vector<float>{1}, stream);  // What is measured again is the same.
  bench->Measure({.name = "unscale",
                  .kernels = "UnscaleKernel",
                  .rows = kParameters,
                  .bytes = 8.0 * kParameters,
                  .run = [&] { UnscaleGpu(static_cast<float*>(sums.view.data), kParameters, scale.data(), stream); },
                  .result = sums.memory.data(),
                  .result_bytes = sums.memory.size()});
}

void MeasureCast(KernelBench* bench) {
  constexpr int64_t kInputs = 13;  // A batch's dense columns, padded.
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix from = random.Make(kFp32, kBatch, kWidth);
  for (const Precision precision : {kBf16, kFp16, kFp32}) {
    const double size = static_cast<double>(ElementBytes(precision));
    const OwnedMatrix to = random.Make(precision, kBatch, kWidth), copy = random.Make(precision, kBatch, kWidth);
    bench->Measure(CallOf("CastKernel", "cast", precision, to, (4 + size) * kWidth,
                          [&] { CastGpu(precision, from.floats(), kWidth, to.view, stream); }));
    bench->Measure(CallOf("CastKernel", "copy", precision, copy, 2 * size * kWidth,
                          [&] { CopyGpu(precision, to.view, copy.view, stream); }));
  }
  const OwnedMatrix inputs = random.Make(kBf16, kBatch, PaddedColumns(kInputs));
  bench->Measure(CallOf("CastKernel", "cast_padding", kBf16, inputs, 4 * kInputs + 2 * PaddedColumns(kInputs),
                        [&] { CastGpu(kBf16, from.floats(), kInputs, inputs.view, stream); }));
}

void MeasureActivations(KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  for (const Precision precision : {kBf16, kFp16, kFp32}) {
    const OwnedMatrix y = random.Make(precision, kBatch, kWidth), a = random.Make(precision, kBatch, kWidth);
    const OwnedMatrix b = random.Make(precision, kBatch, kWidth), to = random.Make(precision, kBatch, kWidth);
    bench->Measure(CallOf("SumGradientsReluKernel", "relu_gradient_sum", precision, to,
                          4 * static_cast<double>(ElementBytes(precision)) * kWidth,
                          [&] { SumGradientsReluGpu(precision, y.view, a.view, b.view, to.view, stream); }));
  }
}

void MeasureCross(KernelBench* bench) {
  constexpr int64_t kColumns = 3456;
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  for (const Precision precision : {kBf16, kFp16, kFp32}) {
    const double row = static_cast<double>(ElementBytes(precision)) * kColumns;
    const OwnedMatrix x0 = random.Make(precision, kBatch, kColumns), factor = random.Make(precision, kBatch, kColumns);
    const OwnedMatrix x = random.Make(precision, kBatch, kColumns), y = random.Make(precision, kBatch, kColumns);
    const OwnedMatrix by_x0 = random.Make(precision, kBatch, kColumns);
    bench->Measure(CallOf("CrossCombineForwardKernel", "cross_forward", precision, y, 4 * row,
                          [&] { CrossCombineForwardGpu(precision, x0.view, factor.view, x.view, y.view, stream); }));
    for (const bool first : {true, false}) {
      bench->Measure(CallOf("CrossCombineBackwardKernel", first ? "cross_backward_first" : "cross_backward_adding",
                            precision, y, (first ? 5 : 6) * row, [&, first] {
                              CrossCombineBackwardGpu(precision, x.view, x0.view, factor.view, y.view, by_x0.view,
                                                      first, stream);
                            }));
    }
  }
}

void MeasureLastLayer(KernelBench* bench) {
  for (const Precision precision : {kBf16, kFp16, kFp32}) MeasureLastLayerOf(precision, 256, false, bench);
  MeasureLastLayerOf(kBf16, 1536, true, bench);
  MeasureLastLayerOf(kFp32, 1024, true, bench);
}

void MeasureTotals(KernelBench* bench) {
  const Stream& stream = bench->stream();
  const DeviceBuffer<double> loss = Upload(std::vector<double>{0.5}, stream);
  const DeviceBuffer<uint32_t> samples = Upload(std::vector<uint32_t>{kBatch}, stream);
  DeviceBuffer<float> totals = Allocate<float>(kStepTotals);
  bench->Measure(
      {.name = "step_totals",
       .kernels = "StepTotalsKernel",
       .rows = 1,
       .bytes = 28,
       .run = [&] { StepTotalsGpu(loss.data(), samples.data(), /*not_finite=*/nullptr, totals.data(), stream); },
       .result = totals.data(),
       .result_bytes = totals.size() * sizeof(float)});
  DeviceBuffer<double> scale = Upload(std::vector<double>{1}, stream);
  bench->Measure({.name = "step_gate",
                  .kernels = "GateKernel",
                  .rows = 1,
                  .bytes = 24,
                  .run = [&] { GateStepGpu(loss.data(), /*not_finite=*/nullptr, scale.data(), stream); },
                  .result = scale.data(),
                  .result_bytes = sizeof(double)});
}

}  // namespace sparrow::bench
