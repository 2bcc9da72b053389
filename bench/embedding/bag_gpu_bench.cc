// Question: how near to a plain gather of the same rows is the pooling of all features in one launch?
// Fixed: 26 features over 26 tables of 1 M rows each in one array (13.3 GB at dim 128, far beyond the 50 MB L2), sum
// pooling, output [samples, 26 * dim]. Varies: bags (one-hot at batch 65,536; those of DLRM-DCNv2, 214 look-ups a
// sample from 1 to 100 a bag, at batch 8,192); ids uniform and Zipf 1.05 within each table; the slot of a row (the row
// alone, or a record of SGD, which is 16 bytes longer); the output's type; dim. Bounds, both measured in the same run:
// a kernel that copies the same look-ups' rows to an array, without pooling, and the device copy bandwidth. Bytes (read
// + written) are 4 * dim + 4 a look-up, and, pooled, a bag's elements and 4 for its offset, gathered, 4 * dim a
// look-up. Skewed ids can pass the bounds, because rows repeat and come from L2. Each time is the median of 50 launches
// between events, L2 flushed before each. usage: embedding_bag_gpu_bench [ROWS_A_TABLE]    (default 1000000)

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "bench/embedding/plain_gather.h"
#include "bench/support/gpu_lookups.h"
#include "bench/support/gpu_timing.h"
#include "embedding/bag_gpu.h"

namespace sparrow {
namespace {

constexpr uint32_t kFeatures = 26;
constexpr int kRuns = 50;
constexpr size_t kCopyBytes = size_t{2} << 30;

// Of the first elements, at most 16 M.
double Checksum(const DeviceBuffer<char>& output, ElementType type, const Stream& stream) {
  std::vector<char> host(std::min<size_t>(output.size(), size_t{16} << 20) / 4 * 4);
  internal::CopyToHost(host.data(), output.data(), host.size(), stream);
  stream.Synchronize();
  double sum = 0;
  for (size_t at = 0; at < host.size(); at += ElementBytes(type)) {
    uint32_t bits = 0;
    std::copy_n(host.data() + at, ElementBytes(type), reinterpret_cast<char*>(&bits));
    if (type == ElementType::kBfloat16) bits <<= 16;
    float value = 0;
    std::copy_n(reinterpret_cast<const char*>(&bits), 4, reinterpret_cast<char*>(&value));
    sum += value;
  }
  return sum;
}

int Main(int argc, char** argv) {
  const uint64_t rows_of_table = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  if (GpuCount() == 0 || rows_of_table == 0 || rows_of_table > 100'000'000) {
    std::fprintf(stderr, "embedding_bag_gpu_bench: %s\n",
                 GpuCount() == 0 ? "no GPU here" : "ROWS_A_TABLE must be 1 to 100000000");
    return 1;
  }
  const Stream stream;
  auto flush = Allocate<char>(size_t{256} << 20);
  double copy = 0;
  {
    auto from = Allocate<char>(kCopyBytes);
    auto to = Allocate<char>(kCopyBytes);
    from.Fill(1, stream);
    copy = CopyRate(kRuns, kCopyBytes, from, &to, &flush, stream);
  }
  std::printf("%s; device copy %.2f TB/s (read + written); 26 tables of %llu rows\n\n", GpuName().c_str(), copy / 1e12,
              static_cast<unsigned long long>(rows_of_table));
  std::printf(
      "| bags | dim | slot bytes | ids | output | median us (min-max) | G look-ups/s | TB/s | of copy | of the gather "
      "| "
      "checksum |\n|---|---|---|---|---|---|---|---|---|---|---|\n");

  for (const bool dcnv2 : {true, false}) {
    const uint32_t samples = dcnv2 ? 8192 : 65536;
    for (const bool zipf : {false, true}) {
      const Lookups lookups =
          MakeLookups(samples, dcnv2 ? kDcnv2BagSizes : kOneHotBagSizes, static_cast<uint32_t>(rows_of_table), zipf);
      const auto offsets = Upload(lookups.offsets, stream);
      const auto index = Upload(lookups.index, stream);
      const auto count = static_cast<double>(lookups.index.size());
      for (const auto& [dim, more] : {std::pair<uint32_t, uint32_t>{16, 16}, {64, 16}, {128, 0}, {128, 16}}) {
        std::vector<uint32_t> columns(kFeatures);
        for (uint32_t f = 0; f < kFeatures; ++f) columns[f] = f * dim;
        const auto d_columns = Upload(columns, stream);
        const uint64_t slot_bytes = uint64_t{4} * dim + more;
        auto slots = Allocate<char>(kFeatures * rows_of_table * slot_bytes);
        slots.Fill(0x3d, stream);  // Every element 0.0464: not zero, finite.
        const DeviceRows rows{slots.data(), slot_bytes, dim};
        const DeviceBags bags{.offsets = offsets.data(),
                              .index = index.data(),
                              .features = kFeatures,
                              .samples = samples,
                              .lookups = static_cast<uint32_t>(index.size())};
        double gather_rate = 0;
        const auto print = [&](const char* type, const Spread& time, double bytes, double checksum) {
          const double rate = bytes / (time.median_us * 1e-6);
          if (gather_rate == 0) gather_rate = rate;
          std::printf("| %s | %u | %llu | %s | %s | %.1f (%.1f-%.1f) | %.2f | %.2f | %.0f %% | %.0f %% | %.6g |\n",
                      dcnv2 ? "DCNv2 x 8192" : "one-hot x 65536", dim, static_cast<unsigned long long>(slot_bytes),
                      zipf ? "Zipf 1.05" : "uniform", type, time.median_us, time.min_us, time.max_us,
                      count / time.median_us / 1e3, rate / 1e12, 100 * rate / copy, 100 * rate / gather_rate, checksum);
          std::fflush(stdout);
        };
        {
          auto output = Allocate<char>(lookups.index.size() * dim * 4);
          const auto gather = [&] {
            PlainGather(index.data(), static_cast<uint32_t>(index.size()), rows,
                        reinterpret_cast<float*>(output.data()), stream);
          };
          const Spread time = Time(kRuns, nullptr, gather, &flush, stream);
          print("(gather)", time, count * (dim * 8 + 4), Checksum(output, ElementType::kFloat32, stream));
        }
        for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16}) {
          auto output = Allocate<char>(size_t{samples} * kFeatures * dim * ElementBytes(type));
          output.Fill(0xff, stream);  // NaN: an element that is not written shows in the checksum.
          const DevicePooled pooled{output.data(), type, d_columns.data(), kFeatures * dim, true};
          const Spread time = Time(
              kRuns, nullptr, [&] { BagsForwardGpu(bags, rows, pooled, stream); }, &flush, stream);
          const double bytes = count * (dim * 4 + 4) +
                               static_cast<double>(bags.rows()) * static_cast<double>(dim * ElementBytes(type) + 4);
          print(type == ElementType::kFloat32 ? "float32" : "bfloat16", time, bytes, Checksum(output, type, stream));
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
