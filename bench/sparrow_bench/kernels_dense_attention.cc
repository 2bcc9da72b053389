// Attention's kernels of `sparrow-bench kernels`: those on tensor cores, and those for all other shapes.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/sparrow_bench/kernels_dense.h"
#include "dense/attention_gpu.h"

namespace sparrow::bench {
namespace {

void MeasureShape(const AttentionShape& shape, Precision precision, bool tensor_cores, double dropout,
                  KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const int64_t rows = shape.rows(), width = shape.width();
  const OwnedMatrix qkv = random.Make(precision, rows, 3 * width), y = random.Make(precision, rows, width);
  const OwnedMatrix y_gradients = random.Make(precision, rows, width);
  const OwnedMatrix qkv_gradients = random.Make(precision, rows, 3 * width);
  DeviceBuffer<float> log_sums = Allocate<float>(static_cast<size_t>(shape.weight_rows()));
  const DeviceBuffer<DropoutPlaceGpu> place = Upload(std::vector<DropoutPlaceGpu>{{.stream = 77}}, stream);
  std::optional<AttentionGpu> attention = AttentionGpu::Make(shape, precision);
  CHECK(attention.has_value()) << "no GPU memory for the workspace of attention";
  AttentionDropoutGpu drops;
  if (dropout > 0) drops = {.place = place.data(), .threshold = Dropout::Of(dropout, 0).threshold};

  const std::string of = "_" + std::to_string(shape.sequences) + "x" + std::to_string(shape.length) + "x" +
                         std::to_string(shape.heads) + "x" + std::to_string(shape.head_width) +
                         (dropout > 0 ? "_dropout" : "");
  const double element = static_cast<double>(ElementBytes(precision)), columns = static_cast<double>(width);
  const double sums = 4.0 * static_cast<double>(shape.heads);
  // Each query meets half of the keys, and itself.
  const double product = static_cast<double>(rows) * columns * static_cast<double>(shape.length + 1);
  const auto measure = [&](KernelCall call, double products) {
    call.flops = products * product;
    call.flops_per_second = tensor_cores ? kBfloat16ProductFlops : kFloat32Flops;
    bench->Measure(call);
  };
  measure(CallOf(tensor_cores ? "AttentionForwardKernel" : "AttentionForwardAnyKernel", "attention_forward" + of,
                 precision, y, 4 * columns * element + sums,
                 [&] { attention->Forward(shape, qkv.view, drops, y.view, log_sums.data(), stream); }),
          2);
  // Five products are needed; the two kernels do seven.
  measure(CallOf(tensor_cores ? "AttentionQueryGradientsKernel AttentionKeyGradientsKernel"
                              : "AttentionQueryGradientsAnyKernel AttentionKeyGradientsAnyKernel",
                 "attention_backward" + of, precision, qkv_gradients, 8 * columns * element + sums,
                 [&] {
                   attention->Backward(shape, qkv.view, y.view, log_sums.data(), drops, y_gradients.view,
                                       qkv_gradients.view, stream);
                 }),
          5);
}

}  // namespace

void MeasureAttention(KernelBench* bench) {
  const AttentionShape gpt2 = {.sequences = 64, .length = 1024, .heads = 12, .head_width = 64};
  MeasureShape(gpt2, kBf16, true, 0, bench);
  MeasureShape(gpt2, kBf16, true, 0.1, bench);
  MeasureShape(gpt2, kFp16, true, 0, bench);
  MeasureShape({.sequences = 64, .length = 256, .heads = 6, .head_width = 64}, kBf16, true, 0.2, bench);
  MeasureShape({.sequences = 16, .length = 1024, .heads = 16, .head_width = 128}, kBf16, true, 0, bench);
}

void MeasureAnyAttention(KernelBench* bench) {
  MeasureShape({.sequences = 8, .length = 1024, .heads = 12, .head_width = 64}, kFp32, false, 0, bench);
  MeasureShape({.sequences = 8, .length = 256, .heads = 4, .head_width = 160}, kBf16, false, 0, bench);
}

}  // namespace sparrow::bench
