// Question: how near to the memory's limit is the sparse backward with the optimizer, and what do skew and row-wise
// Adagrad add to it?
// Fixed: 26 one-hot features over 26 tables of 1 M rows each in one array of records (13.9 GB at dim 128, far beyond
// the 50 MB L2), dim 128, sum pooling, gradients [samples, 26 * 128]. Varies: samples a batch; ids uniform and
// Zipf 1.05 within each table; the optimizer. Bound: bytes over the device copy bandwidth (read + written) of the same
// run, where bytes = dim * 4 a look-up (its gradient) + twice the record a unique row. Skewed ids can pass it: what
// repeats comes from L2. Each time is the median of 50 launches between events, L2 flushed before each: grouping (the
// sort, which needs no gradient and can run beside the forward), and the update proper.
// usage: embedding_sparse_update_gpu_bench [ROWS_A_TABLE]    (default 1000000)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "base/random.h"
#include "bench/support/gpu_timing.h"
#include "embedding/sparse_update_gpu.h"

namespace sparrow {
namespace {

constexpr uint32_t kFeatures = 26;
constexpr uint32_t kDim = 128;
constexpr double kZipf = 1.05;

constexpr int kRuns = 50;
constexpr size_t kCopyBytes = size_t{2} << 30;

template <typename T>
DeviceBuffer<T> Upload(const std::vector<T>& host, const Stream& stream) {
  DeviceBuffer<T> buffer = Allocate<T>(host.size());
  buffer.CopyFrom(host, stream);
  stream.Synchronize();
  return buffer;
}

// Rows of one batch, feature by feature. Zipf: the continuous distribution of that exponent, cut to whole ranks.
std::vector<uint32_t> Slots(uint32_t samples, uint32_t rows, bool zipf) {
  std::vector<uint32_t> slots(size_t{kFeatures} * samples);
  for (size_t i = 0; i < slots.size(); ++i) {
    const double u = RandomUniform(1, i);
    const double rank = zipf ? std::pow(1 - u * (1 - std::pow(rows + 1.0, 1 - kZipf)), 1 / (1 - kZipf)) - 1 : u * rows;
    const uint64_t row = std::min<uint64_t>(static_cast<uint64_t>(rank), rows - 1);
    slots[i] = static_cast<uint32_t>(i / samples * rows + row * 2654435761u % rows);
  }
  return slots;
}

int Main(int argc, char** argv) {
  const uint64_t rows = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  if (GpuCount() == 0 || rows == 0 || rows > 100'000'000) {
    std::fprintf(stderr, "embedding_sparse_update_gpu_bench: %s\n",
                 GpuCount() == 0 ? "no GPU here" : "ROWS_A_TABLE must be 1 to 100000000");
    return 1;
  }
  const Stream stream;
  auto flush = Allocate<char>(size_t{1} << 30);  // Takes longer to fill than the host to queue what is timed.
  double bound = 0;
  {
    auto from = Allocate<char>(kCopyBytes);
    auto to = Allocate<char>(kCopyBytes);
    from.Fill(1, stream);
    bound = CopyRate(kRuns, kCopyBytes, from, &to, &flush, stream);
  }
  std::printf("%s; device copy %.2f TB/s (read + written); 26 tables of %llu x %u, one-hot\n\n", GpuName().c_str(),
              bound / 1e12, static_cast<unsigned long long>(rows), kDim);
  std::printf(
      "| samples | ids | unique rows | optimizer | group us | update us (min-max) | GB/s | of the bound | both | to "
      "SGD "
      "| checksum |\n|---|---|---|---|---|---|---|---|---|---|---|\n");

  for (const uint32_t samples : {65536u, 8192u, 2048u}) {
    for (const bool zipf : {false, true}) {
      const std::vector<uint32_t> index = Slots(samples, static_cast<uint32_t>(rows), zipf);
      std::vector<uint32_t> distinct = index;
      std::sort(distinct.begin(), distinct.end());
      const auto unique = static_cast<double>(std::unique(distinct.begin(), distinct.end()) - distinct.begin());
      std::vector<uint32_t> offsets(index.size() + 1), columns(kFeatures);
      for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<uint32_t>(i);
      for (uint32_t f = 0; f < kFeatures; ++f) columns[f] = f * kDim;
      const SparseUpdateSize size{static_cast<uint32_t>(index.size()), static_cast<uint32_t>(kFeatures * rows), kDim};
      const auto d_index = Upload(index, stream);
      const auto d_offsets = Upload(offsets, stream);
      const auto d_columns = Upload(columns, stream);
      const auto step = Upload(std::vector<SparseStep>(1), stream);
      auto gradients = Allocate<float>(size_t{samples} * kFeatures * kDim);
      gradients.Fill(0x3d, stream);  // Every element 0.0464: not zero, finite.
      auto workspace = Allocate<char>(SparseUpdateWorkspaceBytes(size));
      const DeviceBags bags{d_offsets.data(), d_index.data(), nullptr, int64_t{samples} * kFeatures, false};
      const DeviceGradients output{gradients.data(), d_columns.data(), samples, kFeatures * kDim, true};

      double sgd_us = 0;
      for (const SparseOptimizerKind kind : {SparseOptimizerKind::kSgd, SparseOptimizerKind::kRowwiseAdagrad,
                                             SparseOptimizerKind::kAdagrad, SparseOptimizerKind::kAdam}) {
        const SparseOptimizer optimizer{.kind = kind, .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
        const RowLayout layout(kDim, kind);
        auto records = Allocate<char>(kFeatures * rows * layout.slot_bytes());
        records.Fill(0x3d, stream);
        const auto group = [&] { GroupLookupsGpu(bags, size, {workspace.data(), workspace.size()}, stream); };
        const auto update = [&] {
          SparseUpdateGpu(bags, size, output, optimizer, step.data(), {records.data(), layout},
                          {workspace.data(), workspace.size()}, stream);
        };
        const Spread group_time = Time(kRuns, nullptr, group, &flush, stream);
        const Spread time = Time(kRuns, group, update, &flush, stream);
        if (kind == SparseOptimizerKind::kSgd) sgd_us = time.median_us;

        const uint64_t checked = std::min<uint64_t>(rows, 65536);
        std::vector<char> host(checked * layout.slot_bytes());
        internal::CopyToHost(host.data(), records.data(), host.size(), stream);
        stream.Synchronize();
        double checksum = 0;
        for (uint64_t slot = 0; slot < checked; ++slot) {
          for (uint32_t i = 0; i < kDim; ++i) checksum += layout.Weights(host.data() + slot * layout.slot_bytes())[i];
        }
        const double bytes =
            static_cast<double>(index.size()) * kDim * 4 + unique * 2 * static_cast<double>(layout.record_bytes());
        const char* names[] = {"SGD", "momentum", "Adagrad", "row-wise Adagrad", "Adam"};
        std::printf(
            "| %u | %s | %.0f | %s | %.1f | %.1f (%.1f-%.1f) | %.0f | %.0f %% | %.0f %% | %.2f | %.6g |\n", samples,
            zipf ? "Zipf 1.05" : "uniform", unique, names[static_cast<int>(kind)], group_time.median_us, time.median_us,
            time.min_us, time.max_us, bytes / time.median_us / 1e3, 100 * bytes / (time.median_us * 1e-6) / bound,
            100 * bytes / ((time.median_us + group_time.median_us) * 1e-6) / bound, time.median_us / sgd_us, checksum);
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
