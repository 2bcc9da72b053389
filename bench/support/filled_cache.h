#ifndef SPARROW_BENCH_SUPPORT_FILLED_CACHE_H_
#define SPARROW_BENCH_SUPPORT_FILLED_CACHE_H_

// A row cache on a GPU, half full or full, for benchmarks of its calls.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "bench/support/gpu_timing.h"
#include "embedding/row_cache_gpu.h"

namespace sparrow {

inline constexpr uint32_t kCacheBatch = 1 << 20;  // Names of a call.

// Records are SGD's, with all weights alike. Batches are used at steps 1, 2, ...; rows of the step before are pinned.
class FilledCache {
 public:
  // Of about `rows` slots, with room for the names of so many batches. Full: 1.5 times the names that have room were
  // inserted. nullopt: no GPU memory for the cache.
  static std::optional<FilledCache> Make(uint32_t rows, uint32_t dim, bool full, int batches, const Stream& stream) {
    const RowLayout layout(dim, SparseOptimizerKind::kSgd);
    std::optional<RowCacheGpu> cache = RowCacheGpu::Make(
        {.layout = layout, .bytes = rows * RowCacheSlotBytes(layout), .batch_rows = kCacheBatch}, stream);
    if (!cache.has_value()) return std::nullopt;
    FilledCache filled(*std::move(cache), layout, batches, stream);
    const uint64_t to_insert = full ? uint64_t{rows} / 2 * 3 : rows / 2;
    while (filled.next_name_ < to_insert) {
      const auto some = static_cast<uint32_t>(std::min<uint64_t>(kCacheBatch, to_insert - filled.next_name_));
      filled.PutNames(filled.NextNames(some), stream);
      filled.Insert(0, some, stream);
      stream.Synchronize();
    }
    return filled;
  }

  RowCacheGpu& cache() { return cache_; }
  const RowName* names(uint64_t batch) const { return names_.data() + batch * kCacheBatch; }
  uint32_t* slots() { return slots_.data(); }    // [kCacheBatch], which Insert writes.
  float* values() { return values_.data(); }     // [kCacheBatch, dim]
  uint32_t* counts() { return counts_.data(); }  // [2]: rows evicted and refused by the last Insert.
  DeviceEvicted evicted() {
    return {out_names_.data(), out_records_.data(), out_dirty_.data(),
            counts_.data(),    refused_.data(),     counts_.data() + 1};
  }

  // A step that no call was for.
  const RowCacheStep* NextStep() { return steps_.data() + next_step_++ % kSteps; }

  void Insert(uint64_t batch, uint32_t n, const Stream& stream) {
    cache_.Insert({names(batch), n, nullptr}, records_.data(), NextStep(), slots_.data(), evicted(), stream);
  }

  // Names that are not in the cache and never were.
  std::vector<RowName> NextNames(uint32_t n) {
    std::vector<RowName> names(n);
    for (RowName& name : names) name = NameOf(next_name_++);
    return names;
  }

  // A batch of names that are in the cache, random ones.
  std::vector<RowName> PresentNames(const Stream& stream) {
    std::vector<RowName> there;
    for (uint64_t round = 0; there.size() < kCacheBatch; ++round) {
      std::vector<RowName> tried(kCacheBatch);
      for (uint32_t i = 0; i < kCacheBatch; ++i) tried[i] = NameOf(RandomBits(round, i) % next_name_);
      PutNames(tried, stream);
      cache_.Find({names(0), kCacheBatch, nullptr}, nullptr, slots(), nullptr, stream);
      const std::vector<uint32_t> found = Download(slots(), kCacheBatch, stream);
      for (uint32_t i = 0; i < kCacheBatch && there.size() < kCacheBatch; ++i) {
        if (found[i] != kNoSlot) there.push_back(tried[i]);
      }
    }
    return there;
  }

  // From the first batch on.
  void PutNames(const std::vector<RowName>& names, const Stream& stream) {
    internal::CopyToDevice(names_.data(), names.data(), names.size() * sizeof(RowName), stream);
    stream.Synchronize();
  }

 private:
  static constexpr uint64_t kSteps = 4096;

  FilledCache(RowCacheGpu cache, const RowLayout& layout, int batches, const Stream& stream)
      : cache_(std::move(cache)),
        names_(Allocate<RowName>(uint64_t{kCacheBatch} * static_cast<uint64_t>(batches))),
        records_(Allocate<char>(kCacheBatch * layout.slot_bytes())),
        out_records_(Allocate<char>(kCacheBatch * layout.slot_bytes())),
        values_(Allocate<float>(size_t{kCacheBatch} * layout.dim())) {
    std::vector<RowCacheStep> steps(kSteps);
    for (uint64_t i = 0; i < kSteps; ++i) steps[i] = {i + 1, i};
    steps_.CopyFrom(steps, stream);
    records_.Fill(0x3d, stream);  // Every weight 0.0464: not zero, finite.
    values_.Fill(0xff, stream);
    stream.Synchronize();
  }

  static RowName NameOf(uint64_t i) { return {i, static_cast<uint32_t>(i % 26)}; }

  RowCacheGpu cache_;
  DeviceBuffer<RowName> names_;
  DeviceBuffer<char> records_;
  DeviceBuffer<char> out_records_;
  DeviceBuffer<float> values_;
  DeviceBuffer<RowCacheStep> steps_ = Allocate<RowCacheStep>(kSteps);
  DeviceBuffer<RowName> out_names_ = Allocate<RowName>(kCacheBatch);
  DeviceBuffer<uint8_t> out_dirty_ = Allocate<uint8_t>(kCacheBatch);
  DeviceBuffer<uint32_t> counts_ = Allocate<uint32_t>(2);
  DeviceBuffer<uint32_t> refused_ = Allocate<uint32_t>(kCacheBatch);
  DeviceBuffer<uint32_t> slots_ = Allocate<uint32_t>(kCacheBatch);
  uint64_t next_step_ = 0;
  uint64_t next_name_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_BENCH_SUPPORT_FILLED_CACHE_H_
