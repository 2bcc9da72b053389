// Question: how near to the chip's limits are the matrix products of DLRM's fully connected layers, alone and as a
// step? Fixed: bf16, the layers 13 (padded to 16)-512-256-128 and 480-1024-1024-512-256, random data. Varies: batch
// size; what goes into epilogues. Bound of an operation: the larger of its flops / 787 TFLOP/s (what a large bf16
// product reaches on this chip) and its bytes / copy bandwidth, measured in the same run; the bound of a step is the
// sum of its operations'. Flops are 2 n in out; bytes are both factors read and the output written once, with 1 bit an
// element of a mask and 4 bytes an element of weight gradients. Operations: the median of 25 runs between events, L2
// flushed before each, so that small ones pay for cold factors that they find in L2 in a step. Steps: all operations in
// order as one CUDA graph, the median of 25 replays, without flushes. usage: dense_linear_gpu_bench [BATCH] (default:
// 65,536, 8,192 and 2,048)

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/graph.h"
#include "base/cuda/stream.h"
#include "base/random.h"
#include "bench/support/gpu_timing.h"
#include "dense/linear_gpu.h"

namespace sparrow {
namespace {

constexpr int kRuns = 25;
constexpr double kFlops = 787e12;
constexpr size_t kCopyBytes = size_t{2} << 30;

// bf16 values, normal with this deviation; of many elements the same million again and again.
DeviceBuffer<uint16_t> RandomOnDevice(int64_t size, double deviation, const Stream& stream) {
  std::vector<uint16_t> host(std::min<size_t>(static_cast<size_t>(size), 1'000'003));
  for (size_t i = 0; i < host.size(); ++i) {
    const auto value = static_cast<float>(deviation * RandomNormal(11, i));
    host[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
  DeviceBuffer<uint16_t> device = Allocate<uint16_t>(static_cast<size_t>(size));
  for (size_t at = 0; at < device.size(); at += host.size()) {
    const size_t count = std::min(host.size(), device.size() - at);
    internal::CopyToDevice(device.data() + at, host.data(), 2 * count, stream);
  }
  stream.Synchronize();
  return device;
}

struct Layer {
  Layer(int64_t n, int64_t in, int64_t out, bool first, bool bottom, const Stream& stream)
      : n(n),
        in(in),
        out(out),
        first(first),
        bottom(bottom),
        x(RandomOnDevice(n * in, 1, stream)),
        w(RandomOnDevice(out * in, 0.05, stream)),
        b(RandomOnDevice(out, 0.05, stream)),
        y(Allocate<uint16_t>(n * out)),
        y_gradients(RandomOnDevice(n * out, 1e-3, stream)),
        x_gradients(Allocate<uint16_t>(n * in)),
        w_gradients(Allocate<float>(out * in)),
        b_gradients(Allocate<float>(out)),
        mask(Allocate<uint8_t>(ReluMaskBytes(n, out))),
        mask_below(Allocate<uint8_t>(ReluMaskBytes(n, in))) {
    mask_below.Fill(0x5a, stream);
  }
  static DeviceMatrix Of(DeviceBuffer<uint16_t>& buffer, int64_t rows, int64_t cols) {
    return {buffer.data(), rows, cols, cols};
  }

  void Forward(ProductsGpu* products, const Stream& stream) {
    products->Forward(Of(x, n, in), Of(w, out, in), b.data(), true, Of(y, n, out), mask.data(), stream);
  }
  void BackwardInput(ProductsGpu* products, const Stream& stream) {
    // The first layer of the top tower hands its gradients to the interaction.
    products->BackwardInput(Of(y_gradients, n, out), Of(w, out, in), first ? nullptr : mask_below.data(), false,
                            Of(x_gradients, n, in), stream);
  }
  void BackwardWeights(ProductsGpu* products, const Stream& stream) {
    products->BackwardWeights(Of(y_gradients, n, out), Of(x, n, in), w_gradients.data(), b_gradients.data(), stream);
  }

  const int64_t n, in, out;
  const bool first, bottom;
  DeviceBuffer<uint16_t> x, w, b, y, y_gradients, x_gradients;
  DeviceBuffer<float> w_gradients, b_gradients;
  DeviceBuffer<uint8_t> mask, mask_below;
};

struct Operation {
  const char* name;
  const Layer* layer;
  double bytes;
  std::function<void(ProductsGpu*)> run;

  double flops() const { return 2.0 * static_cast<double>(layer->n * layer->in * layer->out); }
  double BoundMicroseconds(double copy_rate) const { return 1e6 * std::max(flops() / kFlops, bytes / copy_rate); }
};

class Bench {
 public:
  Bench() {
    auto from = Allocate<char>(kCopyBytes), to = Allocate<char>(kCopyBytes);
    from.Fill(1, stream_);
    copy_rate_ = CopyRate(kRuns, kCopyBytes, from, &to, &flush_, stream_);
    std::printf("%s; device copy of 2 GiB %.2f TB/s (read + written)\n\n", GpuName().c_str(), copy_rate_ / 1e12);
  }

  void Sums() {
    std::printf("| sums of columns | MB | median us (min-max) | GB/s | of the 2 GiB copy |\n|---|---|---|---|---|\n");
    ProductsGpu products = Products({});
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{2048, 256},
                                     {2048, 1024},
                                     {8192, 1024},
                                     {65536, 128},
                                     {65536, 1024},
                                     {1 << 20, 1024}}) {
      DeviceBuffer<uint16_t> values = RandomOnDevice(rows * cols, 1, stream_);
      DeviceBuffer<float> sums = Allocate<float>(static_cast<size_t>(cols));
      const Spread time = Time(
          kRuns, nullptr, [&] { products.ColumnSums(Layer::Of(values, rows, cols), sums.data(), stream_); }, &flush_,
          stream_);
      const double bytes = 2.0 * static_cast<double>(rows * cols);
      const double rate = bytes / (time.median_us * 1e-6);
      std::printf("| %lld x %lld bf16 | %.1f | %.1f (%.1f-%.1f) | %.0f | %.0f %% |\n", static_cast<long long>(rows),
                  static_cast<long long>(cols), bytes / 1e6, time.median_us, time.min_us, time.max_us, rate / 1e9,
                  100 * rate / copy_rate_);
    }
    std::printf("\n");
  }

  void Batch(int64_t n) {
    std::list<Layer> layers;
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{16, 512}, {512, 256}, {256, 128}}) {
      layers.emplace_back(n, in, out, layers.empty(), true, stream_);
    }
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{480, 1024}, {1024, 1024}, {1024, 512}, {512, 256}}) {
      layers.emplace_back(n, in, out, layers.size() == 3, false, stream_);
    }
    const std::vector<Operation> operations = StepOf(&layers);

    ProductsGpu fused = Products({});
    const auto begin = std::chrono::steady_clock::now();
    for (const Operation& operation : operations) operation.run(&fused);
    stream_.Synchronize();
    const std::chrono::duration<double> chosen = std::chrono::steady_clock::now() - begin;
    std::printf("Batch %lld: choosing took %.2f s\n\n", static_cast<long long>(n), chosen.count());
    std::printf(
        "| operation | in x out | bound us | by | median us (min-max) | TFLOP/s | of bound "
        "|\n|---|---|---|---|---|---|---|"
        "\n");
    for (const Operation& operation : operations) {
      const Spread time = Time(
          kRuns, nullptr, [&] { operation.run(&fused); }, &flush_, stream_);
      const double bound = operation.BoundMicroseconds(copy_rate_);
      std::printf("| %s | %lld x %lld | %.1f | %s | %.1f (%.1f-%.1f) | %.0f | %.0f %% |\n", operation.name,
                  static_cast<long long>(operation.layer->in), static_cast<long long>(operation.layer->out), bound,
                  operation.flops() / kFlops * copy_rate_ > operation.bytes ? "flops" : "bytes", time.median_us,
                  time.min_us, time.max_us, operation.flops() / time.median_us / 1e6, 100 * bound / time.median_us);
    }
    std::printf("\n| step as a graph, batch %lld | bound us | median us (min-max) | TFLOP/s | of bound | checksum |\n",
                static_cast<long long>(n));
    std::printf("|---|---|---|---|---|---|\n");
    Step("chosen by time", operations, &fused, layers);
    ProductsGpu apart = Products({.fuse = false});
    Step("no epilogues", operations, &apart, layers);
    ProductsGpu first = Products({.deterministic = true});
    Step("deterministic", operations, &first, layers);
    std::printf("\n%s\n", fused.Describe().c_str());
    std::fflush(stdout);
  }

 private:
  ProductsGpu Products(const ProductsGpu::Options& options) {
    std::optional<ProductsGpu> products = ProductsGpu::Make(options, stream_);
    CHECK(products.has_value());
    return *std::move(products);
  }

  // Forward through both towers, then backward, as a step does.
  std::vector<Operation> StepOf(std::list<Layer>* layers) {
    std::vector<Operation> operations;
    for (Layer& layer : *layers) {
      const auto factors = static_cast<double>(layer.n * layer.in + layer.in * layer.out);
      const auto outputs = static_cast<double>(layer.n * layer.out);
      operations.push_back({"forward", &layer, 2 * factors + 2.125 * outputs,
                            [&](ProductsGpu* products) { layer.Forward(products, stream_); }});
    }
    for (auto it = layers->rbegin(); it != layers->rend(); ++it) {
      Layer& layer = *it;
      const auto inputs = static_cast<double>(layer.n * layer.in), outputs = static_cast<double>(layer.n * layer.out);
      const auto weights = static_cast<double>(layer.in * layer.out);
      operations.push_back({"backward, weights", &layer, 2 * (inputs + outputs) + 4 * weights,
                            [&](ProductsGpu* products) { layer.BackwardWeights(products, stream_); }});
      if (layer.first && layer.bottom) continue;  // Nothing wants the gradients of the batch.
      operations.push_back({"backward, input", &layer, 2 * (outputs + weights) + (layer.first ? 2 : 2.125) * inputs,
                            [&](ProductsGpu* products) { layer.BackwardInput(products, stream_); }});
    }
    return operations;
  }

  void Step(const char* name, const std::vector<Operation>& operations, ProductsGpu* products,
            const std::list<Layer>& layers) {
    double bound = 0, flops = 0;
    for (const Operation& operation : operations) {
      bound += operation.BoundMicroseconds(copy_rate_);
      flops += operation.flops();
      operation.run(products);
    }
    stream_.Synchronize();
    const Graph graph(stream_, [&] {
      for (const Operation& operation : operations) operation.run(products);
    });
    std::vector<double> us;
    for (int i = 0; i < 5 + kRuns; ++i) {
      Event start, end;
      start.Record(stream_);
      graph.Replay(stream_);
      end.Record(stream_);
      if (i >= 5) us.push_back(end.MillisecondsSince(start) * 1e3);
    }
    std::sort(us.begin(), us.end());
    double checksum = 0;
    for (const Layer& layer : layers) {
      std::vector<float> w(layer.w_gradients.size()), b(layer.b_gradients.size());
      layer.w_gradients.CopyTo(w, stream_);
      layer.b_gradients.CopyTo(b, stream_);
      stream_.Synchronize();
      for (const float value : w) checksum += value * value;
      for (const float value : b) checksum += value * value;
    }
    const double median = us[us.size() / 2];
    std::printf("| %s | %.1f | %.1f (%.1f-%.1f) | %.0f | %.0f %% | %.6g |\n", name, bound, median, us.front(),
                us.back(), flops / median / 1e6, 100 * bound / median, checksum);
  }

  const Stream stream_;
  DeviceBuffer<char> flush_ = Allocate<char>(size_t{256} << 20);
  double copy_rate_ = 0;
};

int Main(int argc, char** argv) {
  const int64_t batch = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 0;
  if (GpuCount() == 0 || (argc > 1 && batch <= 0)) {
    std::fprintf(stderr, "dense_linear_gpu_bench: %s\n",
                 GpuCount() == 0 ? "no GPU here" : "BATCH must be a positive number");
    return 1;
  }
  Bench bench;
  bench.Sums();
  for (const int64_t n : batch > 0 ? std::vector<int64_t>{batch} : std::vector<int64_t>{65536, 8192, 2048}) {
    bench.Batch(n);
  }
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
