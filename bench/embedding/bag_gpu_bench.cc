// Question: how near to the memory's limit is BagForwardGpu?
// Fixed: one-hot bags of a table of 16 M x dim fp32 (a table far larger than the 50 MB L2), 1 M and 64 K bags, ids
// uniform and Zipf-like, sum pooling; then bags of 20. Varies: dim. Bound: device copy bandwidth (bytes read +
// written), measured in the same run; bytes are counted as dim * 4 a look-up + dim * 4 a bag + 4 a look-up's index
// + 4 a bag's offset. Skewed ids can pass the bound, because rows repeat and come from L2.
// Each time is the median of 50 launches between events, L2 flushed before each.
// usage: embedding_bag_gpu_bench [ROWS]    (default 16777216; at dim 128 that is 8 GiB)

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
#include "embedding/bag_gpu.h"

namespace sparrow {
namespace {

constexpr int kRuns = 50;
constexpr size_t kCopyBytes = size_t{2} << 30;

int Main(int argc, char** argv) {
  const uint64_t unique = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : uint64_t{16} << 20;
  if (GpuCount() == 0 || unique == 0) {
    std::fprintf(stderr, "embedding_bag_gpu_bench: %s\n",
                 unique == 0 ? "ROWS must be a positive number" : "no GPU here");
    return 1;
  }
  const Stream stream;
  auto flush = Allocate<char>(size_t{256} << 20);

  // The bound: copying 2 GiB.
  auto from = Allocate<char>(kCopyBytes);
  auto to = Allocate<char>(kCopyBytes);
  from.Fill(1, stream);
  const double bound = CopyRate(kRuns, kCopyBytes, from, &to, &flush, stream);
  std::printf("%s; device copy %.2f TB/s (read + written)\n\n", GpuName().c_str(), bound / 1e12);
  std::printf(
      "| dim | bags | look-ups a bag | ids | median us (min-max) | G rows/s | TB/s | of copy | checksum "
      "|\n|---|---|---|---|---|---|---|---|---|\n");

  for (const uint32_t dim : {1u, 16u, 64u, 128u}) {
    auto rows = Allocate<float>(unique * dim);
    rows.Fill(0x3d, stream);  // Every element 0.0464: not zero, finite.
    for (const auto& [bags, length] : {std::pair<uint32_t, uint32_t>{1 << 20, 1}, {1 << 16, 1}, {1 << 16, 20}}) {
      for (const bool skewed : {false, true}) {
        std::vector<uint32_t> offsets(bags + 1), index(size_t{bags} * length);
        for (uint32_t i = 0; i <= bags; ++i) offsets[i] = i * length;
        for (size_t i = 0; i < index.size(); ++i) {
          const double u = RandomUniform(1, i);
          // Skewed: log-uniform rank, which is Zipf with exponent 1, scattered over the table by an odd multiplier.
          const double rank =
              skewed ? std::exp(u * std::log(static_cast<double>(unique))) - 1 : u * static_cast<double>(unique);
          index[i] = static_cast<uint32_t>(static_cast<uint64_t>(rank) * 2654435761u % unique);
        }
        auto d_offsets = Allocate<uint32_t>(offsets.size());
        auto d_index = Allocate<uint32_t>(index.size());
        auto output = Allocate<float>(size_t{bags} * dim);
        d_offsets.CopyFrom(offsets, stream);
        d_index.CopyFrom(index, stream);
        output.Fill(0xff, stream);  // NaN: an element that is not written shows in the checksum.
        const DeviceBags device_bags{d_offsets.data(), d_index.data(), nullptr, bags, false};
        const Spread time = Time(
            kRuns, nullptr, [&] { BagForwardGpu(device_bags, rows.data(), dim, output.data(), dim, 0, stream); },
            &flush, stream);
        std::vector<float> host(output.size());
        output.CopyTo(host, stream);
        stream.Synchronize();
        double checksum = 0;
        for (const float value : host) checksum += value;
        const double lookups = static_cast<double>(index.size());
        const double bytes = lookups * (dim * 4 + 4) + static_cast<double>(bags) * (dim * 4 + 4);
        const double rate = bytes / (time.median_us * 1e-6);
        std::printf("| %u | %u | %u | %s | %.1f (%.1f-%.1f) | %.2f | %.2f | %.0f %% | %.6g |\n", dim, bags, length,
                    skewed ? "Zipf 1.0" : "uniform", time.median_us, time.min_us, time.max_us,
                    lookups / time.median_us / 1e3, rate / 1e12, 100 * rate / bound, checksum);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
