// Question: how many rows a second does the row cache find and insert on the GPU, and how near is that to the memory's
// limit? And how long does it take to make the names of a batch unique?
// Fixed: calls of 1 M names (2^20), records of SGD (weights and 16 bytes), names uniform over the rows in the cache,
// all found; batches inserted are new to the cache, used at steps 1, 2, ..., rows of the step before pinned. Varies:
// slots of the cache, dim, the load factor (measured; 1.0 is reached by inserting 1.5 times what has room). Unique
// names: 26 tables of 1 M rows, 65,536 look-ups each, uniform and Zipf 1.05. Bound: bytes over the device copy
// bandwidth (read + written) of the same run. Bytes, a name: find: 16 (name) + 16 (the slot's entry) + 4 (score out) +
// 4 (slot), and a digest for each slot of the cache, once; with values 8 * dim more. Insert: 16 (name) + 16 (entry out)
// + 4 (slot), and the entries of the cache in, once; the record in and out; for a row evicted its name out and its
// record in and out. Unique: 16 + 4, and 16 a unique name. What a random access moves beside what it needs (the rest of
// 32 or 64 bytes) and what the sort of an insert moves are not counted. Each time is the median of 30 calls between
// events, L2 flushed before each. usage: embedding_row_cache_gpu_bench [ROWS]    (default 16777216: slots of the
// smaller cache)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "base/random.h"
#include "bench/support/gpu_timing.h"
#include "embedding/dedup_gpu.h"
#include "embedding/row_cache_gpu.h"

namespace sparrow {
namespace {

constexpr int kRuns = 30;
constexpr int kBatches = kRuns + 5;  // Time warms up with five.
constexpr uint32_t kBatch = 1 << 20;
constexpr size_t kCopyBytes = size_t{2} << 30;

RowName NameOf(uint64_t i) { return {i, static_cast<uint32_t>(i % 26)}; }

template <typename T>
DeviceBuffer<T> Upload(const std::vector<T>& host, const Stream& stream) {
  DeviceBuffer<T> buffer = Allocate<T>(host.size());
  buffer.CopyFrom(host, stream);
  stream.Synchronize();
  return buffer;
}

template <typename T>
std::vector<T> Download(const T* from, size_t n, const Stream& stream) {
  std::vector<T> host(n);
  internal::CopyToHost(host.data(), from, n * sizeof(T), stream);
  stream.Synchronize();
  return host;
}

class Bench {
 public:
  explicit Bench(const Stream& stream) : stream_(stream), flush_(Allocate<char>(size_t{1} << 30)) {
    auto from = Allocate<char>(kCopyBytes);
    auto to = Allocate<char>(kCopyBytes);
    from.Fill(1, stream);
    bound_ = CopyRate(kRuns, kCopyBytes, from, &to, &flush_, stream);
  }

  double bound() const { return bound_; }

  void Cache(uint32_t rows, uint32_t dim, bool full) {
    const RowLayout layout(dim, SparseOptimizerKind::kSgd);
    const uint64_t slot_bytes = layout.slot_bytes();
    const RowCacheOptions options{layout, rows * (slot_bytes + 18), 0, kBatch};
    auto cache = RowCacheGpu::Make(options, stream_);
    if (!cache.has_value()) {
      std::printf("no GPU memory for %u rows of dim %u\n", rows, dim);
      return;
    }
    std::vector<RowCacheStep> host_steps(4096);
    for (uint64_t i = 0; i < host_steps.size(); ++i) host_steps[i] = {i + 1, i};
    const auto steps = Upload(host_steps, stream_);
    auto names = Allocate<RowName>(uint64_t{kBatch} * kBatches);
    auto records = Allocate<char>(kBatch * slot_bytes);
    auto out_records = Allocate<char>(kBatch * slot_bytes);
    auto out_names = Allocate<RowName>(kBatch);
    auto out_dirty = Allocate<uint8_t>(kBatch);
    auto counts = Allocate<uint32_t>(2);
    auto refused = Allocate<uint32_t>(kBatch);
    auto slots = Allocate<uint32_t>(kBatch);
    auto values = Allocate<float>(size_t{kBatch} * dim);
    records.Fill(0x3d, stream_);  // Every weight 0.0464: not zero, finite.
    values.Fill(0xff, stream_);
    const DeviceEvicted evicted{out_names.data(), out_records.data(), out_dirty.data(),
                                counts.data(),    refused.data(),     counts.data() + 1};
    uint64_t step = 0, next_name = 0;
    const auto insert = [&](const RowName* batch, uint32_t n) {
      cache->Insert({batch, n, nullptr}, records.data(), steps.data() + step++, slots.data(), evicted, stream_);
    };
    const auto next_names = [&](uint32_t n) {
      std::vector<RowName> batch(n);
      for (RowName& name : batch) name = NameOf(next_name++);
      return batch;
    };

    const uint64_t to_insert = full ? uint64_t{rows} / 2 * 3 : rows / 2;
    while (next_name < to_insert) {
      const std::vector<RowName> batch =
          next_names(static_cast<uint32_t>(std::min<uint64_t>(kBatch, to_insert - next_name)));
      internal::CopyToDevice(names.data(), batch.data(), batch.size() * sizeof(RowName), stream_);
      insert(names.data(), static_cast<uint32_t>(batch.size()));
      stream_.Synchronize();
    }
    const std::vector<uint8_t> digests = Download(cache->index().digests, cache->slots(), stream_);
    load_ = 1 - static_cast<double>(std::count(digests.begin(), digests.end(), 0)) / cache->slots();
    rows_ = cache->slots();
    dim_ = dim;

    // Names that are there.
    std::vector<RowName> there;
    for (uint64_t round = 0; there.size() < kBatch; ++round) {
      std::vector<RowName> tried(kBatch);
      for (uint32_t i = 0; i < kBatch; ++i) tried[i] = NameOf(RandomBits(round, i) % next_name);
      internal::CopyToDevice(names.data(), tried.data(), tried.size() * sizeof(RowName), stream_);
      cache->Find({names.data(), kBatch, nullptr}, nullptr, slots.data(), nullptr, stream_);
      const std::vector<uint32_t> found = Download(slots.data(), kBatch, stream_);
      for (uint32_t i = 0; i < kBatch && there.size() < kBatch; ++i) {
        if (found[i] != kNoSlot) there.push_back(tried[i]);
      }
    }
    internal::CopyToDevice(names.data(), there.data(), there.size() * sizeof(RowName), stream_);
    const DeviceNames hits{names.data(), kBatch, nullptr};
    const double find_bytes = 40.0 * kBatch + rows_;
    Row("find to slots, look only", kBatch, find_bytes - 4.0 * kBatch, nullptr,
        [&] { cache->Find(hits, nullptr, slots.data(), nullptr, stream_); });
    Row(
        "find to slots", kBatch, find_bytes, [&] { ++step; },
        [&] { cache->Find(hits, steps.data() + step, slots.data(), nullptr, stream_); });
    Row("find, rows copied out, look only", kBatch, find_bytes + (8.0 * dim - 4) * kBatch, nullptr,
        [&] { cache->Find(hits, nullptr, slots.data(), values.data(), stream_); });
    Row(
        "find, rows copied out", kBatch, find_bytes + 8.0 * dim * kBatch, [&] { ++step; },
        [&] { cache->Find(hits, steps.data() + step, slots.data(), values.data(), stream_); });
    const std::vector<uint32_t> found = Download(slots.data(), kBatch, stream_);
    const std::vector<float> copied = Download(values.data(), values.size(), stream_);
    const auto wrong = std::count_if(copied.begin(), copied.end(), [&](float v) { return v != copied[0]; });
    if (std::count(found.begin(), found.end(), kNoSlot) != 0 || wrong != 0 || !(copied[0] > 0)) std::printf("WRONG\n");

    // New names: all batches lie in GPU memory beforehand.
    const std::vector<RowName> fresh = next_names(kBatch * kBatches);
    names.CopyFrom(fresh, stream_);
    uint64_t batch = 0;
    const auto next = [&] {
      // Half full: what the call before inserted goes again.
      if (!full && batch > 0) cache->Remove({names.data() + (batch - 1) % kBatches * kBatch, kBatch, nullptr}, stream_);
      ++batch;
    };
    const double insert_bytes = (36.0 + 2.0 * slot_bytes) * kBatch + 16.0 * rows_;
    const double evict_bytes = (16.0 + 2.0 * slot_bytes) * kBatch;
    Row(full ? "insert, a row evicted for each" : "insert", kBatch, insert_bytes + (full ? evict_bytes : 0), next,
        [&] { insert(names.data() + (batch - 1) % kBatches * kBatch, kBatch); });
    const std::vector<uint32_t> ended = Download(counts.data(), 2, stream_);
    std::printf("(the last call: %u evicted, %u refused)\n", ended[0], ended[1]);
    if (!full) return;
    Row("mark dirty", kBatch, 5.0 * kBatch, nullptr, [&] { cache->MarkDirty(slots.data(), kBatch, nullptr, stream_); });
    auto all = Allocate<uint32_t>(kBatch);
    std::vector<uint32_t> first(kBatch);
    for (uint32_t i = 0; i < kBatch; ++i) first[i] = i;
    all.CopyFrom(first, stream_);
    Row(
        "take dirty rows, all of 1 M slots", kBatch, (2.0 * slot_bytes + 34) * kBatch,
        [&] { cache->MarkDirty(all.data(), kBatch, nullptr, stream_); },
        [&] {
          cache->TakeDirty(0, kBatch, {out_names.data(), out_records.data(), kBatch, counts.data()}, stream_);
        });
  }

  void Unique(bool zipf) {
    constexpr uint32_t kTables = 26, kLookups = 65536, kRows = 1'000'000;
    constexpr double kZipf = 1.05;
    std::vector<RowName> names(size_t{kTables} * kLookups);
    for (uint32_t i = 0; i < names.size(); ++i) {
      const double u = RandomUniform(1, i);
      const double rank =
          zipf ? std::pow(1 - u * (1 - std::pow(kRows + 1.0, 1 - kZipf)), 1 / (1 - kZipf)) - 1 : u * kRows;
      names[i] = {Mix64(static_cast<uint64_t>(rank)), i / kLookups};
    }
    const auto n = static_cast<uint32_t>(names.size());
    const auto device_names = Upload(names, stream_);
    auto unique = Allocate<RowName>(n);
    auto count = Allocate<uint32_t>(1);
    auto index = Allocate<uint32_t>(n);
    auto workspace = Allocate<char>(UniqueWorkspaceBytes(n));
    const auto run = [&] {
      UniqueNamesGpu({device_names.data(), n, nullptr}, {unique.data(), count.data(), index.data()},
                     {workspace.data(), workspace.size()}, stream_);
    };
    run();
    rows_ = Download(count.data(), 1, stream_)[0];
    dim_ = 0;
    load_ = 0;
    Row(zipf ? "unique of 1.7 M names, Zipf 1.05" : "unique of 1.7 M names, uniform", n, 20.0 * n + 16.0 * rows_,
        nullptr, run);
  }

 private:
  void Row(const char* what, uint32_t n, double bytes, const std::function<void()>& before,
           const std::function<void()>& work) {
    const Spread time = Time(kRuns, before, work, &flush_, stream_);
    const double rate = bytes / (time.median_us * 1e-6);
    std::printf("| %s | %u | %u | %.3f | %.1f (%.1f-%.1f) | %.2f | %.2f | %.0f %% |\n", what, rows_, dim_, load_,
                time.median_us, time.min_us, time.max_us, n / time.median_us / 1e3, rate / 1e12, 100 * rate / bound_);
    std::fflush(stdout);
  }

  const Stream& stream_;
  DeviceBuffer<char> flush_;  // Takes longer to fill than the host to queue what is timed.
  double bound_ = 0;
  uint32_t rows_ = 0;
  uint32_t dim_ = 0;
  double load_ = 0;
};

int Main(int argc, char** argv) {
  const uint64_t rows = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : uint64_t{1} << 24;
  if (GpuCount() == 0 || rows < kBatch || rows > (uint64_t{1} << 27)) {
    std::fprintf(stderr, "embedding_row_cache_gpu_bench: %s\n",
                 GpuCount() == 0 ? "no GPU here" : "ROWS must be 1048576 to 134217728");
    return 1;
  }
  const Stream stream;
  Bench bench(stream);
  std::printf("%s; device copy %.2f TB/s (read + written)\n\n", GpuName().c_str(), bench.bound() / 1e12);
  std::printf(
      "| what | slots (unique names) | dim | load factor | median us (min-max) | G rows/s | TB/s | of the bound |\n"
      "|---|---|---|---|---|---|---|---|\n");
  bench.Unique(false);
  bench.Unique(true);
  const auto small = static_cast<uint32_t>(rows);
  for (const bool full : {false, true}) {
    bench.Cache(small, 64, full);
    bench.Cache(4 * small, 64, full);
    bench.Cache(small, 8, full);
    bench.Cache(small, 128, full);
  }
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
