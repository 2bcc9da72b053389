// The products of `sparrow-bench kernels`, and what follows them where an epilogue does not.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/sparrow_bench/kernels_dense.h"
#include "dense/linear_gpu.h"

namespace sparrow::bench {
namespace {

double FlopsPerSecond(Precision precision) {
  return precision == kFp32 ? kFloat32Flops : precision == Precision::kTf32 ? kTf32ProductFlops : kBfloat16ProductFlops;
}

ProductsGpu MakeProducts(const ProductsGpu::Options& options, const Stream& stream) {
  std::optional<ProductsGpu> products = ProductsGpu::Make(options, stream);
  CHECK(products.has_value()) << "no GPU memory for products";
  return *std::move(products);
}

// A layer of 1,024 x 1,024 in one precision.
void MeasureLayer(Precision precision, int64_t batch, KernelBench* bench) {
  const double size = static_cast<double>(ElementBytes(precision));
  const double elements = static_cast<double>(batch * kWidth), weights = static_cast<double>(kWidth * kWidth);
  const double flops = 2 * elements * static_cast<double>(kWidth);
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  ProductsGpu products = MakeProducts({.precision = precision}, stream);
  const OwnedMatrix x = random.Make(precision, batch, kWidth), w = random.Make(precision, kWidth, kWidth);
  const OwnedMatrix b = random.Make(precision, 1, kWidth), y = random.Make(precision, batch, kWidth);
  const OwnedMatrix y_gradients = random.Make(precision, batch, kWidth);
  const OwnedMatrix x_gradients = random.Make(precision, batch, kWidth);
  const OwnedMatrix w_gradients = random.Make(kFp32, kWidth, kWidth), b_gradients = random.Make(kFp32, 1, kWidth);
  const auto measure = [&](const char* kernels, const char* name, const OwnedMatrix& result, double bytes, double of,
                           const std::function<void()>& run) {
    run();  // Chooses.
    KernelCall call = CallOf(kernels, name, precision, result, 0, run);
    call.rows = static_cast<uint64_t>(batch);
    call.bytes = bytes;
    call.flops = of;
    call.flops_per_second = FlopsPerSecond(precision);
    bench->Measure(call);
  };
  measure("", "product_forward", y, size * (2 * elements + weights), flops,
          [&] { products.Forward(x.view, w.view, b.view.data, true, y.view, nullptr, stream); });
  measure("", "product_forward_plain", y, size * (2 * elements + weights), flops,
          [&] { products.Forward(x.view, w.view, nullptr, false, y.view, nullptr, stream); });
  measure("", "product_backward_input", x_gradients, size * (2 * elements + weights), flops,
          [&] { products.BackwardInput(y_gradients.view, w.view, nullptr, false, x_gradients.view, stream); });
  measure("", "product_backward_input_adding", x_gradients, size * (3 * elements + weights), flops,
          [&] { products.BackwardInput(y_gradients.view, w.view, nullptr, true, x_gradients.view, stream); });
  measure(precision == kBf16 ? "relu_product::Kernel" : "GradientsKernel", "product_backward_through_relu", x_gradients,
          size * (3 * elements + weights), flops, [&] {
            products.BackwardThroughRelu(y_gradients.view, w.view, x.view, nullptr, x_gradients.view,
                                         b_gradients.floats(), stream);
          });
  measure("", "product_backward_weights", w_gradients, 2 * size * elements + 4 * weights, flops,
          [&] { products.BackwardWeights(y_gradients.view, x.view, w_gradients.floats(), nullptr, stream); });
  measure(
      "GradientsKernel", "product_backward_weights_and_biases", w_gradients, 2 * size * elements + 4 * weights, flops,
      [&] { products.BackwardWeights(y_gradients.view, x.view, w_gradients.floats(), b_gradients.floats(), stream); });
  measure("GradientsKernel", "column_sums", b_gradients, size * elements, 0,
          [&] { products.ColumnSums(y_gradients.view, b_gradients.floats(), stream); });
}

// Bias and ReLU behind the product instead of in its epilogue.
void MeasureApart(Precision precision, int64_t batch, KernelBench* bench) {
  const double size = static_cast<double>(ElementBytes(precision));
  const double elements = static_cast<double>(batch * kWidth), weights = static_cast<double>(kWidth * kWidth);
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  ProductsGpu products = MakeProducts({.precision = precision, .deterministic = true, .fuse = false}, stream);
  const OwnedMatrix x = random.Make(precision, batch, kWidth), w = random.Make(precision, kWidth, kWidth);
  const OwnedMatrix b = random.Make(precision, 1, kWidth), y = random.Make(precision, batch, kWidth);
  const auto run = [&] { products.Forward(x.view, w.view, b.view.data, true, y.view, nullptr, stream); };
  run();  // Chooses.
  KernelCall call = CallOf("BiasReluKernel", "product_forward_apart", precision, y, 0, run);
  call.bytes = size * (2 * elements + weights);
  call.flops = 2 * elements * static_cast<double>(kWidth);
  call.flops_per_second = FlopsPerSecond(precision);
  bench->Measure(call);
}

// A layer of width x width on a small batch, in bfloat16, by products of our own. Alone: what they gain in a chain, by
// beginning before the kernel before has ended, is not seen here.
void MeasureSmall(int64_t batch, int64_t width, KernelBench* bench) {
  const double size = static_cast<double>(ElementBytes(kBf16));
  const double elements = static_cast<double>(batch * width), weights = static_cast<double>(width * width);
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  ProductsGpu products = MakeProducts({.precision = kBf16, .small_rows_max = batch}, stream);
  const OwnedMatrix x = random.Make(kBf16, batch, width), w = random.Make(kBf16, width, width);
  const OwnedMatrix b = random.Make(kBf16, 1, width), y = random.Make(kBf16, batch, width);
  const OwnedMatrix y_gradients = random.Make(kBf16, batch, width), x_gradients = random.Make(kBf16, batch, width);
  const auto measure = [&](const char* name, const OwnedMatrix& result, double bytes,
                           const std::function<void()>& run) {
    run();  // Chooses.
    KernelCall call = CallOf("tile_product::Kernel", name, kBf16, result, 0, run);
    call.bytes = bytes;
    call.flops = 2 * elements * static_cast<double>(width);
    call.flops_per_second = kBfloat16ProductFlops;
    bench->Measure(call);
  };
  measure("product_forward_small", y, size * (2 * elements + weights),
          [&] { products.Forward(x.view, w.view, b.view.data, true, y.view, nullptr, stream); });
  measure("product_backward_input_small", x_gradients, size * (2 * elements + weights),
          [&] { products.BackwardInput(y_gradients.view, w.view, nullptr, false, x_gradients.view, stream); });
  measure("product_backward_through_relu_small", x_gradients, size * (3 * elements + weights), [&] {
    products.BackwardThroughRelu(y_gradients.view, w.view, x.view, nullptr, x_gradients.view, nullptr, stream);
  });
}

// The gradients of weights and biases of several layers in one launch, in bfloat16.
void MeasureTogether(const char* name, int64_t batch, const std::vector<std::pair<int64_t, int64_t>>& sizes,
                     KernelBench* bench) {
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  ProductsGpu products = MakeProducts({.precision = kBf16}, stream);
  std::vector<OwnedMatrix> all;
  std::vector<LayerGradients> layers;
  double bytes = 0, flops = 0;
  for (const auto& [in, out] : sizes) {
    const OwnedMatrix& g = all.emplace_back(random.Make(kBf16, batch, out));
    layers.push_back({.y_gradients = g.view});
    layers.back().x = all.emplace_back(random.Make(kBf16, batch, in)).view;
    layers.back().b_gradients = all.emplace_back(random.Make(kFp32, 1, out)).floats();
    layers.back().w_gradients = all.emplace_back(random.Make(kFp32, out, in)).floats();
    const double rows = static_cast<double>(batch), weights = static_cast<double>(in * out);
    bytes += 2 * rows * static_cast<double>(in + out) + 4 * weights;
    flops += 2 * rows * weights;
  }
  KernelCall call = CallOf("weight_product::Kernel", name, kBf16, all.back(), 0,
                           [&] { products.BackwardWeightsTogether(layers, LaunchAt::kEnd, stream); });
  call.rows = static_cast<uint64_t>(batch);
  call.bytes = bytes;
  call.flops = flops;
  call.flops_per_second = kBfloat16ProductFlops;
  bench->Measure(call);
}

// What computes a product that the library does not have.
void MeasurePlain(Precision precision, int64_t batch, KernelBench* bench) {
  const double size = static_cast<double>(ElementBytes(precision));
  const double elements = static_cast<double>(batch * kWidth), weights = static_cast<double>(kWidth * kWidth);
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  ProductsGpu products = MakeProducts({.precision = precision, .library = false}, stream);
  const OwnedMatrix x = random.Make(precision, batch, kWidth), w = random.Make(precision, kWidth, kWidth);
  const OwnedMatrix y = random.Make(precision, batch, kWidth);
  const auto run = [&] { products.Forward(x.view, w.view, nullptr, false, y.view, nullptr, stream); };
  run();  // Chooses.
  KernelCall call = CallOf("PlainProductKernel", "product_forward_without_library", precision, y, 0, run);
  call.bytes = size * (2 * elements + weights);
  call.flops = 2 * elements * static_cast<double>(kWidth);
  call.flops_per_second = FlopsPerSecond(precision);
  bench->Measure(call);
}

}  // namespace

void MeasureProducts(KernelBench* bench) {
  MeasureLayer(kBf16, kBatch, bench);
  for (const Precision precision : {kFp16, Precision::kTf32, kFp32}) MeasureLayer(precision, kBatch / 4, bench);
  MeasureApart(kBf16, kBatch, bench);
  for (const int64_t width : {1024, 512}) MeasureSmall(2048, width, bench);  // Wide and narrow tiles.
  for (const int64_t batch : {int64_t{2048}, kBatch / 8}) {
    // A pair of blocks for two tiles, and several for one.
    MeasureTogether("products_weights_together", batch, {{480, 1024}, {1024, 1024}, {1024, 512}}, bench);
    MeasureTogether("products_weights_together_few", batch, {{512, 256}, {16, 512}, {512, 256}, {256, 128}}, bench);
  }
  for (const Precision precision : {kBf16, kFp32}) MeasurePlain(precision, 2048, bench);
}

}  // namespace sparrow::bench
