// The dense kernels of `sparrow-bench kernels`, at a large size each. Bytes are counted as in the kernels' comments.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "bench/sparrow_bench/kernel_bench.h"
#include "bench/support/random_matrices.h"
#include "dense/activation_gpu.h"
#include "dense/bce_loss_gpu.h"
#include "dense/cast_gpu.h"
#include "dense/cross_gpu.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/gradient_norm_gpu.h"
#include "dense/interaction_gpu.h"
#include "dense/last_layer_gpu.h"
#include "dense/linear_gpu.h"
#include "dense/loss_scale_gpu.h"

namespace sparrow::bench {
namespace {

constexpr int64_t kBatch = 65536;
constexpr int64_t kWidth = 1024;
constexpr int64_t kParameters = int64_t{64} << 20;
constexpr Precision kBf16 = Precision::kBfloat16;

DeviceBuffer<GridSums> Sums(const Stream& stream) {
  std::optional<DeviceBuffer<GridSums>> sums = MakeGridSums(stream);
  CHECK(sums.has_value());
  return *std::move(sums);
}

DeviceBuffer<DenseStepOptions> StepOptions(const Stream& stream) {
  return Upload(std::vector<DenseStepOptions>{{.gradient_scale = 0.5, .learning_rate_factor = 0.9}}, stream);
}

// A call whose result is a matrix.
KernelCall CallOf(const std::string& name, const OwnedMatrix& result, double row_bytes, std::function<void()> run) {
  return {.name = name,
          .type = "bf16",
          .rows = static_cast<uint64_t>(result.view.rows),
          .dim = static_cast<uint64_t>(result.view.cols),
          .bytes = row_bytes * static_cast<double>(result.view.rows),
          .run = std::move(run),
          .result = result.memory.data(),
          .result_bytes = result.memory.size()};
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
  const std::pair<const char*, DenseRule> rules[] = {
      {"sgd", {.kind = DenseOptimizerKind::kSgd, .learning_rate = 1e-3, .weight_decay = 0.01}},
      {"momentum", {.kind = DenseOptimizerKind::kMomentum, .learning_rate = 1e-3, .momentum = 0.9}},
      {"adagrad", {.kind = DenseOptimizerKind::kAdagrad, .learning_rate = 1e-3, .eps = 1e-8}},
      {"adam", adam},
      {"adamw", adamw}};
  for (const auto& [name, rule] : rules) {
    weights.Fill(0x3e, stream);  // 0.186
    std::optional<DenseOptimizerGpu> optimizer = DenseOptimizerGpu::Make(rule, kParameters, stream);
    CHECK(optimizer.has_value()) << "no GPU memory for the state of " << kParameters << " parameters";
    const DenseOptimizerGpu::StepArguments arguments{.weights = weights.data(),
                                                     .gradients = gradients.data(),
                                                     .copy_type = WeightCopy::kBfloat16,
                                                     .copy = copy.data(),
                                                     .options = options.data()};
    bench->Measure({.name = std::string("dense_") + name,
                    .rows = kParameters,
                    .bytes = static_cast<double>(kParameters) * (14 + 8 * DenseStates(rule.kind)),
                    .run = [&] { optimizer->Step(arguments, stream); },
                    .result = weights.data(),
                    .result_bytes = weights.size() * sizeof(float)});
  }
}

void MeasureNorm(KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix gradients = random.Make(Precision::kFloat32, kParameters, 1);
  const DeviceBuffer<DenseStepOptions> options = StepOptions(stream);
  DeviceBuffer<GridSums> sums = Sums(stream);
  DeviceBuffer<GradientClip> clip = Allocate<GradientClip>(1);
  bench->Measure({.name = "gradient_norm",
                  .rows = kParameters,
                  .bytes = 4.0 * kParameters,
                  .run =
                      [&] {
                        GradientNormGpu(gradients.floats(), kParameters, options.data(), {.max_norm = 1}, sums.data(),
                                        clip.data(), stream);
                      },
                  .result = clip.data(),
                  .result_bytes = sizeof(GradientClip)});
}

void MeasureLossScale(KernelBench* bench) {
  constexpr int64_t kPooled = 26 * 128;
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix gradients = random.Make(Precision::kFloat16, kBatch, kPooled);
  DeviceBuffer<uint64_t> count = Upload(std::vector<uint64_t>{0}, stream);
  KernelCall look = CallOf("count_not_finite", gradients, 2 * kPooled,
                           [&] { CountNotFiniteGpu(gradients.view, Precision::kFloat16, count.data(), stream); });
  look.type = "fp16";
  look.result = count.data();
  look.result_bytes = sizeof(uint64_t);
  bench->Measure(look);
  const OwnedMatrix sums = random.Make(Precision::kFloat32, kParameters, 1);
  const DeviceBuffer<float> scale = Upload(std::vector<float>{1}, stream);  // What is measured again is the same.
  bench->Measure({.name = "unscale",
                  .rows = kParameters,
                  .bytes = 8.0 * kParameters,
                  .run = [&] { UnscaleGpu(static_cast<float*>(sums.view.data), kParameters, scale.data(), stream); },
                  .result = sums.memory.data(),
                  .result_bytes = sums.memory.size()});
}

void MeasureCast(KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix from = random.Make(Precision::kFloat32, kBatch, kWidth), to = random.Make(kBf16, kBatch, kWidth);
  bench->Measure(CallOf("cast", to, (4 + 2) * kWidth, [&] { CastGpu(kBf16, from.floats(), kWidth, to.view, stream); }));
}

void MeasureActivations(KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix y = random.Make(kBf16, kBatch, kWidth), a = random.Make(kBf16, kBatch, kWidth);
  const OwnedMatrix b = random.Make(kBf16, kBatch, kWidth), to = random.Make(kBf16, kBatch, kWidth);
  bench->Measure(CallOf("relu_gradient_sum", to, 4 * 2 * kWidth,
                        [&] { SumGradientsReluGpu(kBf16, y.view, a.view, b.view, to.view, stream); }));
}

void MeasureLoss(KernelBench* bench) {
  constexpr int64_t kSamples = int64_t{16} << 20;
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix logits = random.Make(Precision::kFloat32, kSamples, 1);
  DeviceBuffer<float> labels = Allocate<float>(kSamples), gradients = Allocate<float>(kSamples);
  DeviceBuffer<double> loss = Allocate<double>(1);
  DeviceBuffer<GridSums> sums = Sums(stream);
  labels.Fill(0, stream);
  bench->Measure({.name = "bce_loss",
                  .rows = kSamples,
                  .bytes = 12.0 * kSamples,
                  .run =
                      [&] {
                        BceWithLogitsGpu(logits.floats(), labels.data(), kSamples, gradients.data(), loss.data(),
                                         sums.data(), stream);
                      },
                  .result = gradients.data(),
                  .result_bytes = gradients.size() * sizeof(float)});
}

void MeasureInteraction(KernelBench* bench) {
  constexpr int64_t kDim = 128, kFeatures = 26;
  constexpr uint32_t kRecords = 4 << 20;
  constexpr size_t kRecordBytes = 640;
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const InteractionShape shape{.dim = kDim, .bottom_cols = kDim, .features = kFeatures};
  const double vectors = 27 * kDim * 2, outputs = static_cast<double>(PaddedColumns(shape.outputs()) * 2);
  const OwnedMatrix bottom = random.Make(kBf16, kBatch, kDim), sparse = random.Make(kBf16, kBatch, kFeatures * kDim);
  const OwnedMatrix out = random.Make(kBf16, kBatch, shape.outputs());
  const OwnedMatrix bottom_gradients = random.Make(kBf16, kBatch, kDim);
  const OwnedMatrix sparse_gradients = random.Make(kBf16, kBatch, kFeatures * kDim);
  bench->Measure(CallOf("interaction_backward", sparse_gradients, 2 * vectors + outputs, [&] {
    InteractionBackwardGpu(shape, kBf16, bottom.view, sparse.view, VectorsReady::kNo, out.view, true,
                           bottom_gradients.view, sparse_gradients.view, stream);
  }));
  bench->Measure(CallOf("interaction_forward", out, vectors + outputs, [&] {
    InteractionForwardGpu(shape, kBf16, bottom.view, sparse.view, VectorsReady::kNo, out.view, stream);
  }));
  DeviceBuffer<char> records = Allocate<char>(kRecords * kRecordBytes);
  random.Fill(Precision::kFloat32, &records);
  std::vector<uint32_t> slots(kFeatures * kBatch);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<uint32_t>(RandomBits(2, i) % kRecords);
  const DeviceBuffer<uint32_t> device_slots = Upload(slots, stream);
  const GatheredVectors gathered{records.data(), kRecordBytes, device_slots.data()};
  const double gathered_bytes = kFeatures * (kDim * 4 + 4) + kDim * 2 + kFeatures * kDim * 2;
  bench->Measure(CallOf("interaction_forward_gathered", out, gathered_bytes + outputs, [&] {
    InteractionForwardGatheredGpu(shape, kBf16, bottom.view, gathered, sparse.view, VectorsReady::kNo, out.view,
                                  stream);
  }));
}

void MeasureCross(KernelBench* bench) {
  constexpr int64_t kColumns = 3456;
  constexpr double kRow = 2 * kColumns;
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix x0 = random.Make(kBf16, kBatch, kColumns), factor = random.Make(kBf16, kBatch, kColumns);
  const OwnedMatrix x = random.Make(kBf16, kBatch, kColumns), y = random.Make(kBf16, kBatch, kColumns);
  const OwnedMatrix by_x0 = random.Make(kBf16, kBatch, kColumns);
  bench->Measure(CallOf("cross_forward", y, 4 * kRow,
                        [&] { CrossCombineForwardGpu(kBf16, x0.view, factor.view, x.view, y.view, stream); }));
  for (const bool first : {true, false}) {
    bench->Measure(
        CallOf(first ? "cross_backward_first" : "cross_backward_adding", y, (first ? 5 : 6) * kRow, [&, first] {
          CrossCombineBackwardGpu(kBf16, x.view, x0.view, factor.view, y.view, by_x0.view, first, stream);
        }));
  }
}

void MeasureLastLayer(KernelBench* bench) {
  constexpr int64_t kColumns = 256;
  constexpr double kRow = 2 * kColumns;
  constexpr Precision kFp32 = Precision::kFloat32;
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const OwnedMatrix h = random.Make(kBf16, kBatch, kColumns), gradients = random.Make(kBf16, kBatch, kColumns);
  const OwnedMatrix w = random.Make(kFp32, 1, kColumns), b = random.Make(kFp32, 1, 1);
  const OwnedMatrix labels = random.Make(kFp32, kBatch, 1), logits = random.Make(kFp32, kBatch, 1);
  const OwnedMatrix w_gradients = random.Make(kFp32, 1, kColumns), b_gradients = random.Make(kFp32, 1, 1);
  const DeviceBuffer<uint32_t> samples = Upload(std::vector<uint32_t>{kBatch}, stream);
  const DeviceBuffer<float> scale = Upload(std::vector<float>{0.5f}, stream);
  DeviceBuffer<double> loss = Allocate<double>(1);
  DeviceBuffer<char> workspace = Allocate<char>(LastLayerWorkspaceBytes(kBatch, kColumns));
  const LastLayer layer{w.floats(), b.floats(), true};
  KernelCall forward = CallOf("last_layer_forward", logits, kRow + 4,
                              [&] { LastLayerForwardGpu(kBf16, h.view, layer, logits.floats(), stream); });
  forward.dim = kColumns;
  bench->Measure(forward);
  bench->Measure(CallOf("last_layer_loss", gradients, 2 * kRow + 8, [&] {
    LastLayerLossGpu(kBf16, h.view, layer, labels.floats(), samples.data(), scale.data(), logits.floats(),
                     gradients.view, w_gradients.floats(), b_gradients.floats(), loss.data(), workspace.data(), stream);
  }));
}

void MeasureProducts(KernelBench* bench) {
  constexpr double kElements = kBatch * kWidth, kWeights = kWidth * kWidth;
  constexpr double kFlops = 2 * kElements * kWidth;
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  std::optional<ProductsGpu> products = ProductsGpu::Make({}, stream);
  CHECK(products.has_value()) << "no GPU memory for products";
  const OwnedMatrix x = random.Make(kBf16, kBatch, kWidth), w = random.Make(kBf16, kWidth, kWidth);
  const OwnedMatrix b = random.Make(kBf16, 1, kWidth), y = random.Make(kBf16, kBatch, kWidth);
  const OwnedMatrix y_gradients = random.Make(kBf16, kBatch, kWidth);
  const OwnedMatrix x_gradients = random.Make(kBf16, kBatch, kWidth);
  const OwnedMatrix w_gradients = random.Make(Precision::kFloat32, kWidth, kWidth);
  const OwnedMatrix b_gradients = random.Make(Precision::kFloat32, 1, kWidth);
  const auto measure = [&](const char* name, const OwnedMatrix& result, double bytes, double flops,
                           const std::function<void()>& run) {
    KernelCall call = CallOf(name, result, 0, run);
    call.rows = kBatch;
    call.bytes = bytes;
    call.flops = flops;
    bench->Measure(call);
  };
  measure("product_forward", y, 2 * (2 * kElements + kWeights), kFlops,
          [&] { products->Forward(x.view, w.view, b.view.data, true, y.view, nullptr, stream); });
  measure("product_backward_through_relu", x_gradients, 2 * (3 * kElements + kWeights), kFlops, [&] {
    products->BackwardThroughRelu(y_gradients.view, w.view, x.view, nullptr, x_gradients.view, b_gradients.floats(),
                                  stream);
  });
  measure("product_backward_weights", w_gradients, 2 * 2 * kElements + 4 * kWeights, kFlops,
          [&] { products->BackwardWeights(y_gradients.view, x.view, w_gradients.floats(), nullptr, stream); });
  measure("through_relu_and_column_sums", x_gradients, 2 * 3 * kElements, 0,
          [&] { products->ThroughRelu(x_gradients.view, x.view, nullptr, b_gradients.floats(), stream); });
  measure("column_sums", b_gradients, 2 * kElements, 0,
          [&] { products->ColumnSums(y_gradients.view, b_gradients.floats(), stream); });
}

}  // namespace sparrow::bench
