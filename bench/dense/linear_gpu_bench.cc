// Question: how near to the chip's limits are the matrix products of DLRM's fully connected layers, alone and as a
// step?
//
// Fixed: bf16, the layers 13 (padded to 16)-512-256-128 and 480-1024-1024-512-256, random data.
// Varies: batch size, how gradients pass a ReLU and biases get theirs, streams.
// Bound of an operation: the larger of its flops / 787 TFLOP/s (what a large bf16 product reaches on this chip) and its
// bytes / copy bandwidth, measured in the same run. Of a step: the sum of its operations'. Flops are 2 n in out; bytes
// are both factors read and the output written once, a mask's bits or the outputs that gradients pass by, and 4 an
// element of gradients of weights.
//
// Operations: the median of 25 runs between events, L2 flushed before each, so that small ones pay for cold factors
// that they find in L2 in a step.
// Steps: all operations in order as one CUDA graph, the median of 25 replays, without flushes.
//
// usage: dense_linear_gpu_bench [BATCH]    (default: 65,536, 8,192 and 2,048)

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
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

DeviceMatrix Of(DeviceBuffer<uint16_t>& buffer, int64_t rows, int64_t cols) {
  return {buffer.data(), rows, cols, cols};
}

// A stack of layers with ReLU after each. What a layer puts out is what the next one reads, and so are gradients, as in
// a step: what was written last is in L2 if it fits.
struct Tower {
  struct Layer {
    int64_t n, in, out;
    DeviceMatrix x, y, x_gradients, y_gradients;
    DeviceBuffer<uint16_t> w, b;
    DeviceBuffer<float> w_gradients, b_gradients;
    DeviceBuffer<uint8_t> mask;
    Layer* below;  // Null: the first.

    DeviceMatrix weights() { return Of(w, out, in); }
  };

  Tower(int64_t n, const std::vector<int64_t>& sizes, const Stream& stream) {
    for (const int64_t size : sizes) {
      outputs.push_back(RandomOnDevice(n * size, 1, stream));
      gradients.push_back(RandomOnDevice(n * size, 1e-3, stream));
    }
    for (size_t i = 0; i + 1 < sizes.size(); ++i) {
      const int64_t in = sizes[i], out = sizes[i + 1];
      layers.push_back({.n = n,
                        .in = in,
                        .out = out,
                        .x = Of(outputs[i], n, in),
                        .y = Of(outputs[i + 1], n, out),
                        .x_gradients = Of(gradients[i], n, in),
                        .y_gradients = Of(gradients[i + 1], n, out),
                        .w = RandomOnDevice(out * in, std::sqrt(2.0 / static_cast<double>(in)), stream),
                        .b = RandomOnDevice(out, 0.05, stream),
                        .w_gradients = Allocate<float>(out * in),
                        .b_gradients = Allocate<float>(out),
                        .mask = Allocate<uint8_t>(ReluMaskBytes(n, out)),
                        .below = i == 0 ? nullptr : &layers.back()});
    }
  }

  std::vector<DeviceBuffer<uint16_t>> outputs, gradients;
  std::list<Layer> layers;
};

// How a step is computed.
struct Way {
  const char* name;
  ProductsGpu::Options options;
  bool masks = true;             // Else the outputs tell where gradients pass a ReLU.
  bool through = true;           // One kernel for the ReLU and the sums of columns, else one each.
  bool beside = false;           // Gradients of weights in a second stream.
  int side_multiprocessors = 0;  // Of the second stream's products; 0: all.
};

struct Operation {
  const char* name;
  const Tower::Layer* layer;
  bool weights;
  double bytes;
  std::function<void(ProductsGpu*, const Stream&)> run;

  double flops() const { return 2.0 * static_cast<double>(layer->n * layer->in * layer->out); }
  double BoundMicroseconds(double copy_rate) const {
    return 1e6 * std::max(flops() / kBfloat16ProductFlops, bytes / copy_rate);
  }
};

std::vector<Operation> Forward(std::list<Tower::Layer>* layers, const Way& way) {
  std::vector<Operation> operations;
  for (Tower::Layer& layer : *layers) {
    const auto factors = static_cast<double>(layer.n * layer.in + layer.in * layer.out);
    const auto outputs = static_cast<double>(layer.n * layer.out);
    void* const mask = way.masks ? layer.mask.data() : nullptr;
    const auto run = [&layer, mask](ProductsGpu* products, const Stream& stream) {
      products->Forward(layer.x, layer.weights(), layer.b.data(), true, layer.y, mask, stream);
    };
    operations.push_back({way.masks ? "forward, with mask" : "forward", &layer, false,
                          2 * factors + (way.masks ? 2.125 : 2) * outputs, run});
  }
  return operations;
}

std::vector<Operation> Backward(std::list<Tower::Layer>* layers, bool input_wanted, const Way& way) {
  std::vector<Operation> operations;
  for (auto it = layers->rbegin(); it != layers->rend(); ++it) {
    Tower::Layer& layer = *it;
    const auto inputs = static_cast<double>(layer.n * layer.in), outputs = static_cast<double>(layer.n * layer.out);
    const auto weights = static_cast<double>(layer.in * layer.out);
    float* const bias = it == layers->rbegin() || !way.through ? layer.b_gradients.data() : nullptr;
    const auto run_weights = [&layer, bias](ProductsGpu* products, const Stream& stream) {
      products->BackwardWeights(layer.y_gradients, layer.x, layer.w_gradients.data(), bias, stream);
    };
    operations.push_back({bias != nullptr ? "weights and biases" : "weights", &layer, true,
                          2 * (inputs + outputs) + 4 * weights, run_weights});
    if (layer.below == nullptr && !input_wanted) continue;  // Nothing wants the gradients of the batch.
    const void* const mask = layer.below != nullptr && way.masks ? layer.below->mask.data() : nullptr;
    const bool through = layer.below != nullptr && way.through;
    const auto run_input = [&layer, mask, through](ProductsGpu* products, const Stream& stream) {
      if (through) {
        products->BackwardThroughRelu(layer.y_gradients, layer.weights(), layer.x, mask, layer.x_gradients,
                                      layer.below->b_gradients.data(), stream);
      } else {
        products->BackwardInput(layer.y_gradients, layer.weights(), mask, false, layer.x_gradients, stream);
      }
    };
    const double relu_bytes = layer.below == nullptr ? 0 : way.masks ? inputs / 8 : 2 * inputs;
    const char* const name = layer.below == nullptr ? "input"
                             : !way.through         ? "input, ReLU by mask"
                             : way.masks            ? "input, ReLU by mask, biases below"
                                                    : "input, ReLU by outputs, biases below";
    operations.push_back({name, &layer, false, 2 * (outputs + weights + inputs) + relu_bytes, run_input});
  }
  return operations;
}

class Bench {
 public:
  Bench() {
    auto from = Allocate<char>(kCopyBytes), to = Allocate<char>(kCopyBytes);
    from.Fill(1, stream_);
    copy_rate_ = CopyRate(kRuns, kCopyBytes, from, &to, &flush_, stream_);
    std::printf("%s; device copy of 2 GiB %.2f TB/s (read + written)\n\n", GpuName().c_str(), copy_rate_ / 1e12);
  }

  void Kernels() {
    std::printf("| kernel | MB moved | median us (min-max) | GB/s | of the 2 GiB copy |\n|---|---|---|---|---|\n");
    ProductsGpu products = Products({}, stream_);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{2048, 256},
                                     {2048, 1024},
                                     {8192, 1024},
                                     {65536, 128},
                                     {65536, 1024},
                                     {1 << 20, 1024}}) {
      DeviceBuffer<uint16_t> values = RandomOnDevice(rows * cols, 1, stream_);
      DeviceBuffer<float> sums = Allocate<float>(static_cast<size_t>(cols));
      const DeviceMatrix gradients = Of(values, rows, cols);
      const auto print = [&, rows = rows, cols = cols](const char* name, double bytes_each,
                                                       const std::function<void()>& work) {
        const Spread time = Time(kRuns, nullptr, work, &flush_, stream_);
        const double bytes = bytes_each * static_cast<double>(rows * cols);
        const double rate = bytes / (time.median_us * 1e-6);
        std::printf("| %s, %lld x %lld bf16 | %.1f | %.1f (%.1f-%.1f) | %.0f | %.0f %% |\n", name,
                    static_cast<long long>(rows), static_cast<long long>(cols), bytes / 1e6, time.median_us,
                    time.min_us, time.max_us, rate / 1e9, 100 * rate / copy_rate_);
      };
      print("sums of columns", 2, [&] { products.ColumnSums(gradients, sums.data(), stream_); });
    }
    std::printf("\n");
  }

  // with_own: with our own product behind a ReLU, else all other ways.
  void Batch(int64_t n, bool with_own) {
    Tower bottom(n, {16, 512, 256, 128}, stream_);
    Tower top(n, {480, 1024, 1024, 512, 256}, stream_);
    const ProductsGpu::Options own = {};
    const ProductsGpu::Options library = {.own = ProductsGpu::Options::Own::kNever};
    const Way ways[] = {
        {.name = "masks", .options = library},
        {.name = "no masks", .options = library, .masks = false},
        {.name = "masks, two streams", .options = library, .beside = true},
        {.name = "no masks, two streams", .options = library, .masks = false, .beside = true},
        {.name = "no masks, two streams, all and 32",
         .options = library,
         .masks = false,
         .beside = true,
         .side_multiprocessors = 32},
        {.name = "no masks, two streams, 100 and 32",
         .options = {.multiprocessors = 100, .own = ProductsGpu::Options::Own::kNever},
         .masks = false,
         .beside = true,
         .side_multiprocessors = 32},
        {.name = "no masks, two streams, 84 and 48",
         .options = {.multiprocessors = 84, .own = ProductsGpu::Options::Own::kNever},
         .masks = false,
         .beside = true,
         .side_multiprocessors = 48},
        {.name = "no masks, two streams, 66 and 66",
         .options = {.multiprocessors = 66, .own = ProductsGpu::Options::Own::kNever},
         .masks = false,
         .beside = true,
         .side_multiprocessors = 66},
        {.name = "own", .options = own, .masks = false},
        {.name = "own, two streams", .options = own, .masks = false, .beside = true},
        {.name = "own, two streams, all and 32",
         .options = own,
         .masks = false,
         .beside = true,
         .side_multiprocessors = 32},
        {.name = "own, two streams, all and 66",
         .options = own,
         .masks = false,
         .beside = true,
         .side_multiprocessors = 66},
        {.name = "masks, ReLU and sums apart", .options = library, .through = false},
        {.name = "masks, no epilogues", .options = {.own = ProductsGpu::Options::Own::kNever, .fuse = false}},
        {.name = "no masks, deterministic",
         .options = {.deterministic = true, .own = ProductsGpu::Options::Own::kNever},
         .masks = false},
        {.name = "own, deterministic", .options = {.deterministic = true}, .masks = false},
    };
    ProductsGpu products = Products(with_own ? own : library, stream_);
    std::printf("| batch %lld | in x out | bound us | by | median us (min-max) | TFLOP/s | of bound |\n",
                static_cast<long long>(n));
    std::printf("|---|---|---|---|---|---|---|\n");
    for (const Way& way : {ways[0], ways[1]}) {
      for (const Operation& operation : StepOf(&bottom, &top, way)) {
        if (operation.weights && !way.masks) continue;  // The same either way.
        if (with_own && (operation.weights || way.masks)) continue;
        operation.run(&products, stream_);
        const Spread time = Time(
            kRuns, nullptr, [&] { operation.run(&products, stream_); }, &flush_, stream_);
        const double bound = operation.BoundMicroseconds(copy_rate_);
        std::printf("| %s | %lld x %lld | %.1f | %s | %.1f (%.1f-%.1f) | %.0f | %.0f %% |\n", operation.name,
                    static_cast<long long>(operation.layer->in), static_cast<long long>(operation.layer->out), bound,
                    operation.flops() / kBfloat16ProductFlops * copy_rate_ > operation.bytes ? "flops" : "bytes",
                    time.median_us, time.min_us, time.max_us, operation.flops() / time.median_us / 1e6,
                    100 * bound / time.median_us);
      }
    }
    std::printf(
        "\n| step as a graph, batch %lld | bound us | median us (min-max) | TFLOP/s | of bound | choosing s | "
        "checksum |\n|---|---|---|---|---|---|---|\n",
        static_cast<long long>(n));
    for (const Way& way : ways) {
      if (with_own == std::string(way.name).starts_with("own")) Step(way, &bottom, &top);
    }
    std::printf("\n%s\n", products.Describe().c_str());
    std::fflush(stdout);
  }

 private:
  static ProductsGpu Products(const ProductsGpu::Options& options, const Stream& stream) {
    std::optional<ProductsGpu> products = ProductsGpu::Make(options, stream);
    CHECK(products.has_value());
    return *std::move(products);
  }

  static std::vector<Operation> StepOf(Tower* bottom, Tower* top, const Way& way) {
    std::vector<Operation> operations;
    for (const auto& part : {Forward(&bottom->layers, way), Forward(&top->layers, way),
                             Backward(&top->layers, true, way), Backward(&bottom->layers, false, way)}) {
      operations.insert(operations.end(), part.begin(), part.end());
    }
    return operations;
  }

  void Step(const Way& way, Tower* bottom, Tower* top) {
    const std::vector<Operation> operations = StepOf(bottom, top, way);
    const Stream side;
    ProductsGpu::Options side_options = way.options;
    side_options.multiprocessors = way.side_multiprocessors;
    ProductsGpu products = Products(way.options, stream_), side_products = Products(side_options, side);
    Event fork, join;
    const auto step = [&] {
      for (const Operation& operation : operations) {
        if (!operation.weights || !way.beside) {
          operation.run(&products, stream_);
          continue;
        }
        fork.Record(stream_);
        side.WaitFor(fork);
        operation.run(&side_products, side);
      }
      if (!way.beside) return;
      join.Record(side);
      stream_.WaitFor(join);
    };
    const auto begin = std::chrono::steady_clock::now();
    step();
    stream_.Synchronize();
    const std::chrono::duration<double> chosen = std::chrono::steady_clock::now() - begin;
    const Graph graph(stream_, step);
    std::vector<double> us;
    for (int i = 0; i < 5 + kRuns; ++i) {
      Event start, end;
      start.Record(stream_);
      graph.Replay(stream_);
      end.Record(stream_);
      if (i >= 5) us.push_back(end.MillisecondsSince(start) * 1e3);
    }
    std::sort(us.begin(), us.end());
    double bound = 0, flops = 0, checksum = 0;
    for (const Operation& operation : operations) {
      bound += operation.BoundMicroseconds(copy_rate_);
      flops += operation.flops();
    }
    for (const Tower* tower : {bottom, top}) {
      for (const Tower::Layer& layer : tower->layers) {
        for (const DeviceBuffer<float>* gradients : {&layer.w_gradients, &layer.b_gradients}) {
          std::vector<float> host(gradients->size());
          gradients->CopyTo(host, stream_);
          stream_.Synchronize();
          for (const float value : host) checksum += value * value;
        }
      }
    }
    const double median = us[us.size() / 2];
    std::printf("| %s | %.1f | %.1f (%.1f-%.1f) | %.0f | %.0f %% | %.2f | %.6g |\n", way.name, bound, median,
                us.front(), us.back(), flops / median / 1e6, 100 * bound / median, chosen.count(), checksum);
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
  bench.Kernels();
  for (const bool own : {false, true}) {
    for (const int64_t n : batch > 0 ? std::vector<int64_t>{batch} : std::vector<int64_t>{65536, 8192, 2048}) {
      bench.Batch(n, own);
    }
  }
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
