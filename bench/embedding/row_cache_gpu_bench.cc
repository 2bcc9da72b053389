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
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "base/random.h"
#include "bench/support/filled_cache.h"
#include "bench/support/gpu_lookups.h"
#include "bench/support/gpu_timing.h"
#include "embedding/dedup_gpu.h"
#include "embedding/row_cache_gpu.h"

namespace sparrow {
namespace {

constexpr int kRuns = 30;
constexpr int kBatches = kRuns + 5;  // Time warms up with five.
constexpr size_t kCopyBytes = size_t{2} << 30;

// A cache's index as it stands, to go back to.
class SavedIndex {
 public:
  SavedIndex(RowCacheGpu* cache, const Stream& stream)
      : cache_(cache),
        digests_(Allocate<uint8_t>(cache->slots())),
        dirty_(Allocate<uint8_t>(cache->slots())),
        entries_(Allocate<CacheEntry>(cache->slots())) {
    const DeviceRowIndex& index = cache->index();
    internal::CopyOnDevice(digests_.data(), index.digests, digests_.size(), stream);
    internal::CopyOnDevice(dirty_.data(), index.dirty, dirty_.size(), stream);
    internal::CopyOnDevice(entries_.data(), index.entries, entries_.size() * sizeof(CacheEntry), stream);
  }

  void Restore(const Stream& stream) const {
    const DeviceRowIndex& index = cache_->index();
    internal::CopyOnDevice(index.digests, digests_.data(), digests_.size(), stream);
    internal::CopyOnDevice(index.dirty, dirty_.data(), dirty_.size(), stream);
    internal::CopyOnDevice(index.entries, entries_.data(), entries_.size() * sizeof(CacheEntry), stream);
  }

 private:
  RowCacheGpu* cache_;
  DeviceBuffer<uint8_t> digests_;
  DeviceBuffer<uint8_t> dirty_;
  DeviceBuffer<CacheEntry> entries_;
};

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
    std::optional<FilledCache> filled = FilledCache::Make(rows, dim, full, kBatches, stream_);
    if (!filled.has_value()) {
      std::printf("no GPU memory for %u rows of dim %u\n", rows, dim);
      return;
    }
    RowCacheGpu* const cache = &filled->cache();
    const auto slot_bytes = static_cast<double>(cache->records().layout.slot_bytes());
    const std::vector<uint8_t> digests = Download(cache->index().digests, cache->slots(), stream_);
    load_ = 1 - static_cast<double>(std::count(digests.begin(), digests.end(), 0)) / cache->slots();
    rows_ = cache->slots();
    dim_ = dim;

    filled->PutNames(filled->PresentNames(stream_), stream_);
    const DeviceNames hits{filled->names(0), kCacheBatch, nullptr};
    const RowCacheStep* step = nullptr;
    const auto next_step = [&] { step = filled->NextStep(); };
    uint32_t* const slots = filled->slots();
    float* const values = filled->values();
    const double find_bytes = 40.0 * kCacheBatch + rows_;
    Row("find to slots, look only", kCacheBatch, find_bytes - 4.0 * kCacheBatch, nullptr,
        [&] { cache->Find(hits, nullptr, slots, nullptr, stream_); });
    Row("find to slots", kCacheBatch, find_bytes, next_step, [&] { cache->Find(hits, step, slots, nullptr, stream_); });
    Row("find, rows copied out, look only", kCacheBatch, find_bytes + (8.0 * dim - 4) * kCacheBatch, nullptr,
        [&] { cache->Find(hits, nullptr, slots, values, stream_); });
    Row("find, rows copied out", kCacheBatch, find_bytes + 8.0 * dim * kCacheBatch, next_step,
        [&] { cache->Find(hits, step, slots, values, stream_); });
    const std::vector<uint32_t> found = Download(slots, kCacheBatch, stream_);
    const std::vector<float> copied = Download(values, size_t{kCacheBatch} * dim, stream_);
    const auto wrong = std::count_if(copied.begin(), copied.end(), [&](float v) { return v != copied[0]; });
    if (std::count(found.begin(), found.end(), kNoSlot) != 0 || wrong != 0 || !(copied[0] > 0)) std::printf("WRONG\n");

    // New names: all batches lie in GPU memory beforehand.
    filled->PutNames(filled->NextNames(kCacheBatch * kBatches), stream_);
    uint64_t batch = 0;
    std::optional<SavedIndex> half_full;
    if (!full) half_full.emplace(cache, stream_);
    const auto next = [&] {
      if (half_full.has_value()) half_full->Restore(stream_);  // What the call before inserted goes again.
      ++batch;
    };
    const double insert_bytes = (36.0 + 2.0 * slot_bytes) * kCacheBatch + 16.0 * rows_;
    const double evict_bytes = (16.0 + 2.0 * slot_bytes) * kCacheBatch;
    Row(full ? "insert, a row evicted for each" : "insert", kCacheBatch, insert_bytes + (full ? evict_bytes : 0), next,
        [&] { filled->Insert((batch - 1) % kBatches, kCacheBatch, stream_); });
    const std::vector<uint32_t> ended = Download(filled->counts(), 2, stream_);
    std::printf("(the last call: %u evicted, %u refused)\n", ended[0], ended[1]);
    if (!full) return;
    Row("mark dirty", kCacheBatch, 5.0 * kCacheBatch, nullptr,
        [&] { cache->MarkDirty(slots, kCacheBatch, nullptr, stream_); });
    auto all = Allocate<uint32_t>(kCacheBatch);
    std::vector<uint32_t> first(kCacheBatch);
    for (uint32_t i = 0; i < kCacheBatch; ++i) first[i] = i;
    all.CopyFrom(first, stream_);
    Row(
        "take dirty rows, all of 1 M slots", kCacheBatch, (2.0 * slot_bytes + 34) * kCacheBatch,
        [&] { cache->MarkDirty(all.data(), kCacheBatch, nullptr, stream_); },
        [&] {
          const DeviceEvicted out = filled->evicted();
          cache->TakeDirty(0, kCacheBatch, {out.names, out.records, kCacheBatch, out.count}, stream_);
        });
  }

  void Unique(bool zipf) {
    constexpr uint32_t kTables = 26, kLookups = 65536, kRows = 1'000'000;
    std::vector<RowName> names(size_t{kTables} * kLookups);
    for (uint32_t i = 0; i < names.size(); ++i) {
      names[i] = {Mix64(RankOf(RandomUniform(1, i), kRows, zipf)), i / kLookups};
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
  if (GpuCount() == 0 || rows < kCacheBatch || rows > (uint64_t{1} << 27)) {
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
