// Question: how near to the memory's limit is the sparse backward with the optimizer, and what do skew, row-wise
// Adagrad and the type of gradients add to it? How near are the sums alone? Fixed: 26 one-hot features over 26 tables
// of 1 M rows each in one array of records (13.9 GB at dim 128, far beyond the 50 MB L2), dim 128, sum pooling,
// gradients [samples, 26 * 128]. Varies: samples a batch; ids uniform and Zipf 1.05 within each table; the optimizer;
// the type of gradients. Bound: bytes over the device copy bandwidth (read + written) of the same run, where bytes =
// dim elements a look-up (its gradient) + twice the record a unique row; for sums alone 4 * dim a unique row, whose
// slots are numbered without gaps. Skewed ids can pass it: what repeats comes from L2. Each time is the median of 50
// launches between events, L2 flushed before each: grouping (the sort, which needs no gradient and can run beside the
// forward), and the update proper. usage: embedding_sparse_update_gpu_bench [ROWS_A_TABLE [SAMPLES]]    (default
// 1000000, and three batch sizes)

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "bench/support/gpu_lookups.h"
#include "bench/support/gpu_timing.h"
#include "embedding/sparse_update_gpu.h"

namespace sparrow {
namespace {

constexpr uint32_t kFeatures = 26;
constexpr uint32_t kDim = 128;

constexpr int kRuns = 50;
constexpr size_t kCopyBytes = size_t{2} << 30;

// Of the first 65,536 rows' numbers.
double Checksum(const char* rows, uint64_t row_bytes, uint64_t count, const Stream& stream) {
  count = std::min<uint64_t>(count, 65536);
  std::vector<char> host(count * row_bytes);
  internal::CopyToHost(host.data(), rows, host.size(), stream);
  stream.Synchronize();
  double sum = 0;
  for (uint64_t row = 0; row < count; ++row) {
    for (uint32_t i = 0; i < kDim; ++i) sum += reinterpret_cast<const float*>(host.data() + row * row_bytes)[i];
  }
  return sum;
}

int Main(int argc, char** argv) {
  const uint64_t rows = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  const uint64_t only = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (GpuCount() == 0 || rows == 0 || rows > 100'000'000 || only > 1'000'000) {
    std::fprintf(stderr, "embedding_sparse_update_gpu_bench: %s\n",
                 GpuCount() == 0 ? "no GPU here" : "ROWS_A_TABLE must be 1 to 100000000, SAMPLES up to 1000000");
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
      "| samples | ids | unique rows | gradients | optimizer | group us | update us (min-max) | GB/s | of the bound | "
      "both | to SGD | checksum |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");

  std::vector<uint32_t> batches = {65536, 8192, 2048};
  if (only != 0) batches = {static_cast<uint32_t>(only)};
  for (const uint32_t samples : batches) {
    for (const bool zipf : {false, true}) {
      const auto& [offsets, index] = MakeLookups(samples, kOneHotBagSizes, static_cast<uint32_t>(rows), zipf);
      const std::vector<uint32_t> distinct = DistinctSlots(index);
      const auto unique = static_cast<double>(distinct.size());
      std::vector<uint32_t> columns(kFeatures);
      for (uint32_t f = 0; f < kFeatures; ++f) columns[f] = f * kDim;
      const auto lookups = static_cast<uint32_t>(index.size());
      const SparseUpdateSize size{lookups, static_cast<uint32_t>(kFeatures * rows), kDim};
      const SparseUpdateSize sums_size{lookups, static_cast<uint32_t>(distinct.size()), kDim};
      const auto d_index = Upload(index, stream);
      const auto d_ranks = Upload(RanksAmong(distinct, index), stream);
      const auto d_offsets = Upload(offsets, stream);
      const auto d_columns = Upload(columns, stream);
      const auto step = Upload(std::vector<SparseStep>(1), stream);
      auto refused_rows = Upload(std::vector<uint64_t>(1), stream);
      auto gradients = Allocate<float>(size_t{samples} * kFeatures * kDim);
      gradients.Fill(0x3d, stream);  // Every element 0.0464, in 16 bits too: not zero, finite.
      auto memory = Allocate<char>(std::max(SparseUpdateWorkspaceBytes(size), SparseUpdateWorkspaceBytes(sums_size)));
      const DeviceWorkspace workspace{memory.data(), memory.size()};
      const DeviceBags bags{
          .offsets = d_offsets.data(), .index = d_index.data(), .features = kFeatures, .samples = samples};
      DeviceBags ranked = bags;
      ranked.index = d_ranks.data();

      for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16}) {
        const DevicePooled pooled{gradients.data(), type, d_columns.data(), kFeatures * kDim, true};
        double sgd_us = 0;
        const auto print = [&](const char* name, const Spread& group, const Spread& time, uint64_t bytes_of_row,
                               double checksum) {
          if (sgd_us == 0) sgd_us = time.median_us;
          const double bytes = static_cast<double>(lookups) * kDim * static_cast<double>(ElementBytes(type)) +
                               unique * static_cast<double>(bytes_of_row);
          std::printf(
              "| %u | %s | %.0f | %s | %s | %.1f | %.1f (%.1f-%.1f) | %.0f | %.0f %% | %.0f %% | %.2f | %.6g |\n",
              samples, zipf ? "Zipf 1.05" : "uniform", unique, type == ElementType::kFloat32 ? "float32" : "bfloat16",
              name, group.median_us, time.median_us, time.min_us, time.max_us, bytes / time.median_us / 1e3,
              100 * bytes / (time.median_us * 1e-6) / bound,
              100 * bytes / ((time.median_us + group.median_us) * 1e-6) / bound, time.median_us / sgd_us, checksum);
          std::fflush(stdout);
        };
        for (const SparseOptimizerKind kind : {SparseOptimizerKind::kSgd, SparseOptimizerKind::kRowwiseAdagrad,
                                               SparseOptimizerKind::kAdagrad, SparseOptimizerKind::kAdam}) {
          const SparseOptimizer optimizer{
              .kind = kind, .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
          const RowLayout layout(kDim, kind);
          auto records = Allocate<char>(kFeatures * rows * layout.slot_bytes());
          records.Fill(0x3d, stream);
          const auto group = [&] { GroupLookupsGpu(bags, size, workspace, stream); };
          const auto update = [&] {
            SparseUpdateGpu(bags, size, pooled, optimizer, step.data(), {records.data(), layout}, refused_rows.data(),
                            workspace, stream);
          };
          const Spread group_time = Time(kRuns, nullptr, group, &flush, stream);
          const Spread time = Time(kRuns, group, update, &flush, stream);
          const char* names[] = {"SGD", "momentum", "Adagrad", "row-wise Adagrad", "Adam"};
          print(names[static_cast<int>(kind)], group_time, time, 2 * layout.record_bytes(),
                Checksum(records.data(), layout.slot_bytes(), rows, stream));
        }
        auto sums = Allocate<float>(distinct.size() * kDim);
        const auto group = [&] { GroupLookupsGpu(ranked, sums_size, workspace, stream); };
        const auto sum = [&] {
          SumGradientsGpu(ranked, sums_size, pooled, sums.data(), refused_rows.data(), workspace, stream);
        };
        const Spread group_time = Time(kRuns, nullptr, group, &flush, stream);
        const Spread time = Time(kRuns, group, sum, &flush, stream);
        print("(sums alone)", group_time, time, uint64_t{4} * kDim,
              Checksum(reinterpret_cast<const char*>(sums.data()), uint64_t{4} * kDim, distinct.size(), stream));
      }
      std::vector<uint64_t> refused(1);
      refused_rows.CopyTo(refused, stream);
      stream.Synchronize();
      if (refused[0] != 0) std::printf("%llu rows were refused\n", static_cast<unsigned long long>(refused[0]));
    }
  }
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
