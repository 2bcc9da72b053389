#include "bench/sparrow_bench/kernel_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/random.h"

namespace sparrow::bench {
namespace {

constexpr size_t kCopyBytes = size_t{2} << 30;
constexpr size_t kLikeCopyBytes = size_t{1} << 30;  // At most, of copies of as many bytes as a kernel moves.
// Takes longer to fill than the host to queue what is timed.
constexpr size_t kFlushBytes = size_t{1} << 30;
constexpr size_t kChecksumBytes = size_t{4} << 20;

// Of the first bytes. A product's last bits depend on how it was chosen to be computed; all else is deterministic.
uint64_t ChecksumOf(const KernelCall& call, const Stream& stream) {
  const size_t bytes = std::min(call.result_bytes, kChecksumBytes);
  const std::vector<char> host = Download(static_cast<const char*>(call.result), bytes, stream);
  uint64_t sum = 0;
  for (size_t at = 0; at + 4 <= bytes; at += 4) {
    uint32_t word;
    std::memcpy(&word, &host[at], sizeof(word));
    sum += Mix64(at << 32 | word);
  }
  return sum;
}

}  // namespace

KernelBench::KernelBench()
    : flush_(Allocate<char>(kFlushBytes)), from_(Allocate<char>(kLikeCopyBytes)), to_(Allocate<char>(kLikeCopyBytes)) {
  from_.Fill(1, stream_);
  {
    DeviceBuffer<char> from = Allocate<char>(kCopyBytes), to = Allocate<char>(kCopyBytes);
    from.Fill(1, stream_);
    copy_rate_ = CopyRate(kRuns, kCopyBytes, from, &to, &flush_, stream_);
  }
  std::printf("%s; device copy of 2 GiB %.2f TB/s (read + written); product %.0f TFLOP/s\n\n", GpuName().c_str(),
              copy_rate_ / 1e12, kBfloat16ProductFlops / 1e12);
  std::printf(
      "| family | kernel | type | rows | columns | MB | GFLOP | median us (min-max) | M rows/s | achieved | bound | "
      "of the bound | of a copy of as many bytes | checksum "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
}

double KernelBench::RateOfLikeCopy(double bytes) {
  const size_t half = std::min(static_cast<size_t>(bytes / 2), kLikeCopyBytes);
  const auto [at, added] = like_rates_.try_emplace(half, 0);
  if (added) at->second = CopyRate(kRuns, half, from_, &to_, &flush_, stream_);
  return at->second;
}

void KernelBench::Measure(const KernelCall& call) {
  const Spread time = Time(kRuns, call.before, call.run, &flush_, stream_);
  const std::string checksum = HexChecksum(ChecksumOf(call, stream_));
  const double seconds = time.median_us * 1e-6;
  const double rows = static_cast<double>(call.rows);
  const double copy_seconds = call.bytes / copy_rate_, product_seconds = call.flops / call.flops_per_second;
  const bool by_flops = product_seconds > copy_seconds;
  const double bound_seconds = std::max(copy_seconds, product_seconds);
  const double rate = (by_flops ? call.flops : call.bytes) / seconds;
  const double like_share = call.bytes / seconds / RateOfLikeCopy(call.bytes);
  std::printf(
      "| %s | %s | %s | %llu | %llu | %.1f | %.1f | %.1f (%.1f-%.1f) | %.0f | %.*f %s | %s | %.0f %% | %.0f %% | %s "
      "|\n",
      family_.c_str(), call.name.c_str(), call.type, static_cast<unsigned long long>(call.rows),
      static_cast<unsigned long long>(call.dim), call.bytes / 1e6, call.flops / 1e9, time.median_us, time.min_us,
      time.max_us, rows / time.median_us, by_flops ? 0 : 2, rate / 1e12, by_flops ? "TFLOP/s" : "TB/s",
      by_flops ? "product" : "copy", 100 * bound_seconds / seconds, 100 * like_share, checksum.c_str());
  std::fflush(stdout);
  Fields fields = FieldsOf({.name = call.name,
                            .transport = "direct",
                            .wire = call.type,
                            .keys = call.rows,
                            .dim = call.dim,
                            .servers = 0,  // A kernel alone.
                            .workers = 1,
                            .rows_per_second = rows / seconds,
                            .p50_ms = time.median_us * 1e-3,
                            .p99_ms = time.max_us * 1e-3,  // Of fewer than a hundred runs.
                            .bound = by_flops ? "product" : "device copy",
                            .bound_rows_per_second = rows / bound_seconds,
                            .checksum = checksum});
  fields.insert(fields.end(), {{"family", family_},
                               {"kernels", std::string(call.kernels)},
                               {"bytes", call.bytes},
                               {"flops", call.flops},
                               {"bytes_per_second", call.bytes / seconds},
                               {"flops_per_second", call.flops / seconds},
                               {"bound_bytes_per_second", copy_rate_},
                               {"bound_flops_per_second", call.flops_per_second},
                               {"bound_share", bound_seconds / seconds},
                               {"like_copy_share", like_share}});
  report_.push_back(std::move(fields));
}

}  // namespace sparrow::bench
