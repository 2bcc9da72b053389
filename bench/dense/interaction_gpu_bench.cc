// Question: how near to the memory's limit are the kernels between the products: DLRM's interaction, DCN V2's
// element-wise cross, and the last layer with the loss?
// Fixed: 27 vectors, the first from the bottom; records of 640 bytes for the gathering form, their slots uniform over
// 16 M (10 GB, far beyond L2); a cross of 3,456 columns; a last layer of 256. Varies: precision, dimension and batch.
// Bounds, measured in the same run: device copy bandwidth (bytes read + written) of 2 GiB, and of as many bytes as the
// kernel moves, since a launch of a few microseconds does not reach the former whatever it does. Bytes moved are
// counted as in the kernels' comments: each input once, each output once. Each time is the median of 30 launches
// between events, L2 flushed before each. Values are random and not 0. The checksum is the sum of magnitudes of the
// first 2,048 rows of the main result. usage: dense_interaction_gpu_bench [BATCH]    (default 65,536, 8,192 and 2,048;
// the first takes 13 GB)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "base/random.h"
#include "bench/support/gpu_timing.h"
#include "bench/support/random_matrices.h"
#include "dense/cross_gpu.h"
#include "dense/interaction_gpu.h"
#include "dense/last_layer_gpu.h"

namespace sparrow {
namespace {

constexpr int kRuns = 30;
constexpr int64_t kCopyBytes = int64_t{2} << 30;
constexpr int64_t kFeatures = 26;
constexpr uint32_t kRecords = 16 << 20;
constexpr size_t kRecordBytes = 640;
constexpr int64_t kChecksumRows = 2048;

const char* NameOf(Precision precision) {
  return precision == Precision::kBfloat16 ? "bf16" : precision == Precision::kFloat16 ? "fp16" : "fp32";
}

double Magnitude(Precision precision, const char* at) {
  if (ElementBytes(precision) == 4) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return std::abs(value);
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  if (precision == Precision::kBfloat16) return std::ldexp((bits & 127) + 128, (bits >> 7 & 255) - 134);
  return std::ldexp((bits & 1023) + 1024, (bits >> 10 & 31) - 25);
}

class Bench {
 public:
  Bench() {
    flush_.Fill(1, stream_);
    from_.Fill(1, stream_);
    bound_ = RateOfCopy(2 * kCopyBytes);
    std::printf("%s; device copy of 2 GiB %.2f TB/s (read + written)\n\n", GpuName().c_str(), bound_ / 1e12);
    std::printf(
        "| kernel | batch | MB moved | median us (min-max) | GB/s | of the 2 GiB copy | of a copy of as many bytes | "
        "checksum |\n|---|---|---|---|---|---|---|---|\n");
  }

  void Interaction(Precision precision, int64_t dim, int64_t n) {
    const InteractionShape shape{.dim = dim, .bottom_cols = dim, .features = kFeatures};
    const std::string name = std::string(NameOf(precision)) + ", 27 x " + std::to_string(dim);
    const int64_t size = static_cast<int64_t>(ElementBytes(precision));
    const int64_t vectors = 27 * dim * size, outputs = PaddedColumns(shape.outputs()) * size;
    const OwnedMatrix bottom = Random(precision, n, dim), sparse = Random(precision, n, kFeatures * dim);
    const OwnedMatrix out = Random(precision, n, shape.outputs());
    const OwnedMatrix bottom_gradients = Random(precision, n, dim);
    const OwnedMatrix sparse_gradients = Random(precision, n, kFeatures * dim);
    Measure(
        "interaction backward, " + name, n, 2 * vectors + outputs,
        [&] {
          InteractionBackwardGpu(shape, precision, bottom.view, sparse.view, VectorsReady::kNo, out.view, true,
                                 bottom_gradients.view, sparse_gradients.view, stream_);
        },
        precision, sparse_gradients);
    Measure(
        "interaction forward, " + name, n, vectors + outputs,
        [&] {
          InteractionForwardGpu(shape, precision, bottom.view, sparse.view, VectorsReady::kNo, out.view, stream_);
        },
        precision, out);

    std::vector<uint32_t> slots(kFeatures * n);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<uint32_t>(RandomBits(2, i) % kRecords);
    DeviceBuffer<uint32_t> device_slots = Allocate<uint32_t>(slots.size());
    device_slots.CopyFrom(slots, stream_);
    stream_.Synchronize();
    const GatheredVectors gathered{records_.data(), kRecordBytes, device_slots.data()};
    const int64_t read = kFeatures * (dim * 4 + 4) + dim * size;
    Measure(
        "gather and interaction forward, " + name, n, read + kFeatures * dim * size + outputs,
        [&] {
          InteractionForwardGatheredGpu(shape, precision, bottom.view, gathered, sparse.view, VectorsReady::kNo,
                                        out.view, stream_);
        },
        precision, out);
  }

  void Cross(Precision precision, int64_t in, int64_t n) {
    const std::string name = std::string(NameOf(precision)) + ", " + std::to_string(in) + " columns";
    const int64_t row = in * static_cast<int64_t>(ElementBytes(precision));
    const OwnedMatrix x0 = Random(precision, n, in), factor = Random(precision, n, in), x = Random(precision, n, in);
    const OwnedMatrix y = Random(precision, n, in), by_x0 = Random(precision, n, in);
    Measure(
        "cross forward, " + name, n, 4 * row,
        [&] { CrossCombineForwardGpu(precision, x0.view, factor.view, x.view, y.view, stream_); }, precision, y);
    for (const bool first : {true, false}) {
      Measure(
          std::string(first ? "cross backward, first, " : "cross backward, adding, ") + name, n, (first ? 5 : 6) * row,
          [&] { CrossCombineBackwardGpu(precision, x.view, x0.view, factor.view, y.view, by_x0.view, first, stream_); },
          precision, y);
    }
  }

  void LastLayerLoss(Precision precision, int64_t in, int64_t n) {
    const std::string name = std::string(NameOf(precision)) + ", " + std::to_string(in) + " columns";
    const int64_t row = in * static_cast<int64_t>(ElementBytes(precision));
    const OwnedMatrix h = Random(precision, n, in), gradients = Random(precision, n, in);
    const OwnedMatrix w = Random(Precision::kFloat32, 1, in), b = Random(Precision::kFloat32, 1, 1);
    const OwnedMatrix labels = Random(Precision::kFloat32, n, 1), logits = Random(Precision::kFloat32, n, 1);
    const OwnedMatrix w_gradients = Random(Precision::kFloat32, 1, in), b_gradients = Random(Precision::kFloat32, 1, 1);
    DeviceBuffer<uint32_t> samples = Allocate<uint32_t>(1);
    DeviceBuffer<double> loss = Allocate<double>(1);
    DeviceBuffer<char> workspace = Allocate<char>(LastLayerWorkspaceBytes(n, in));
    const LastLayer layer{w.floats(), b.floats(), true};
    Measure(
        "last layer forward, " + name, n, row + 4,
        [&] { LastLayerForwardGpu(precision, h.view, layer, logits.floats(), stream_); }, Precision::kFloat32, logits);
    for (const uint32_t counted : {static_cast<uint32_t>(n), 0u}) {
      samples.CopyFrom({&counted, 1}, stream_);
      stream_.Synchronize();
      Measure(
          std::string(counted > 0 ? "last layer with loss, " : "the same without samples, so exponentials, ") + name, n,
          2 * row + 8,
          [&] {
            LastLayerLossGpu(precision, h.view, layer, labels.floats(), samples.data(), b.floats(), logits.floats(),
                             gradients.view, w_gradients.floats(), b_gradients.floats(), loss.data(), workspace.data(),
                             stream_);
          },
          Precision::kFloat32, w_gradients);
    }
  }

 private:
  OwnedMatrix Random(Precision precision, int64_t rows, int64_t cols) { return random_.Make(precision, rows, cols); }

  double Checksum(Precision precision, const OwnedMatrix& matrix) {
    const size_t size = ElementBytes(precision);
    std::vector<char> host(std::min(kChecksumRows, matrix.view.rows) * matrix.view.stride * size);
    internal::CopyToHost(host.data(), matrix.view.data, host.size(), stream_);
    stream_.Synchronize();
    double sum = 0;
    for (size_t i = 0; i < host.size(); i += size) sum += Magnitude(precision, &host[i]);
    return sum;
  }

  // Of a copy that moves `bytes`, which is reading half of them and writing the other.
  double RateOfCopy(int64_t bytes) {
    bytes = std::min(bytes, 2 * kCopyBytes);
    if (const auto known = copy_rates_.find(bytes); known != copy_rates_.end()) return known->second;
    return copy_rates_[bytes] = CopyRate(kRuns, static_cast<size_t>(bytes / 2), from_, &to_, &flush_, stream_);
  }

  // Times `work`, which moves row_bytes a row of the batch, and prints its line; `result` is its main result.
  void Measure(const std::string& name, int64_t n, int64_t row_bytes, const std::function<void()>& work,
               Precision precision, const OwnedMatrix& result) {
    const Spread time = Time(kRuns, nullptr, work, &flush_, stream_);
    const double checksum = Checksum(precision, result);
    const int64_t bytes = n * row_bytes;
    const double rate = static_cast<double>(bytes) / (time.median_us * 1e-6);
    std::printf("| %s | %lld | %.1f | %.1f (%.1f-%.1f) | %.0f | %.0f %% | %.0f %% | %.9g |\n", name.c_str(),
                static_cast<long long>(n), static_cast<double>(bytes) / 1e6, time.median_us, time.min_us, time.max_us,
                rate / 1e9, 100 * rate / bound_, 100 * rate / RateOfCopy(bytes), checksum);
  }

  const Stream stream_;
  DeviceBuffer<char> flush_ = Allocate<char>(int64_t{256} << 20);
  DeviceBuffer<char> from_ = Allocate<char>(kCopyBytes);
  DeviceBuffer<char> to_ = Allocate<char>(kCopyBytes);
  RandomMatrices random_{stream_};
  DeviceBuffer<char> records_ = [this] {
    DeviceBuffer<char> records = Allocate<char>(kRecords * kRecordBytes);
    random_.Fill(Precision::kFloat32, &records);
    return records;
  }();
  double bound_ = 0;
  std::map<int64_t, double> copy_rates_;
};

int Main(int argc, char** argv) {
  const int64_t batch = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 0;
  if (GpuCount() == 0 || (argc > 1 && batch <= 0)) {
    std::fprintf(stderr, "dense_interaction_gpu_bench: %s\n",
                 GpuCount() == 0 ? "no GPU here" : "BATCH must be a positive number");
    return 1;
  }
  Bench bench;
  for (const int64_t n : batch > 0 ? std::vector<int64_t>{batch} : std::vector<int64_t>{65536, 8192, 2048}) {
    bench.Interaction(Precision::kBfloat16, 128, n);
    bench.Cross(Precision::kBfloat16, 3456, n);
    bench.LastLayerLoss(Precision::kBfloat16, 256, n);
  }
  const int64_t n = batch > 0 ? batch : 65536;
  for (const int64_t dim : {16, 32, 64}) bench.Interaction(Precision::kBfloat16, dim, n);
  bench.Interaction(Precision::kFloat16, 128, n);
  bench.Interaction(Precision::kFloat32, 128, n);
  bench.LastLayerLoss(Precision::kFloat32, 256, n);
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
