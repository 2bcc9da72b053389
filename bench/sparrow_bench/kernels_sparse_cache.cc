// The row cache's and the deduplication's kernels of `sparrow-bench kernels`, as bench/sparrow_bench/kernels_sparse.cc.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/random.h"
#include "bench/sparrow_bench/kernel_bench.h"
#include "bench/support/filled_cache.h"
#include "bench/support/gpu_lookups.h"
#include "embedding/dedup_gpu.h"
#include "embedding/row_cache_gpu.h"

namespace sparrow::bench {

void MeasureCache(KernelBench* bench) {
  constexpr uint32_t kSlots = 16 << 20, kCacheDim = 64;
  const Stream& stream = bench->stream();
  std::optional<FilledCache> filled = FilledCache::Make(kSlots, kCacheDim, /*full=*/true, KernelBench::kCalls, stream);
  CHECK(filled.has_value()) << "no GPU memory for a cache of " << kSlots << " slots";
  RowCacheGpu* const cache = &filled->cache();
  filled->PutNames(filled->PresentNames(stream), stream);
  const DeviceNames hits{filled->names(0), kCacheBatch, nullptr};
  const RowCacheStep* step = nullptr;
  // Of a name: itself, its slot's entry, the score out, the slot out; and all digests.
  const double find_bytes = (16.0 + 16 + 4 + 4) * kCacheBatch + cache->slots();
  const auto find = [&](const char* name, float* values) {
    bench->Measure({.name = name,
                    .kernels = "FindKernel",
                    .rows = kCacheBatch,
                    .dim = kCacheDim,
                    .bytes = find_bytes + (values == nullptr ? 0 : 8.0 * kCacheDim * kCacheBatch),
                    .before = [&] { step = filled->NextStep(); },
                    .run = [&] { cache->Find(hits, step, filled->slots(), values, stream); },
                    .result = values == nullptr ? static_cast<const void*>(filled->slots()) : values,
                    .result_bytes = sizeof(uint32_t) * kCacheBatch});
  };
  find("cache_find", nullptr);
  find("cache_find_copying_rows", filled->values());

  // As after a look-up that finds a half: 8 a name in, and of a missing one its name in and out and its position out.
  std::vector<uint32_t> half(kCacheBatch, kNoSlot);
  for (uint32_t i = 0; i < kCacheBatch; ++i) half[i] = RandomBits(3, i) % 2 == 0 ? i : kNoSlot;
  const auto missing = static_cast<double>(std::count(half.begin(), half.end(), kNoSlot));
  const DeviceBuffer<uint32_t> half_found = Upload(half, stream);
  const DeviceEvicted lists = filled->evicted();
  bench->Measure({.name = "cache_list_missing",
                  .kernels = "MissingKernel",
                  .rows = kCacheBatch,
                  .bytes = 8.0 * kCacheBatch + 36 * missing,
                  .run =
                      [&] {
                        cache->ListMissing(hits, half_found.data(), {lists.names, lists.refused, lists.count}, stream);
                      },
                  .result = lists.refused,
                  .result_bytes = sizeof(uint32_t) * kCacheBatch / 4});

  filled->PutNames(filled->NextNames(kCacheBatch * KernelBench::kCalls), stream);
  const double record = static_cast<double>(cache->records().layout.slot_bytes());
  uint64_t batch = 0;
  // Of a name: itself, its entry out, the slot out, its record in and out, and of the row that goes its name out and
  // its record in and out; and all entries.
  bench->Measure({.name = "cache_insert_evicting",
                  .kernels = "BucketKernel PlaceKernel MoveKernel",
                  .rows = kCacheBatch,
                  .dim = kCacheDim,
                  .bytes = (16.0 + 16 + 4 + 16 + 4 * record) * kCacheBatch + 16.0 * cache->slots(),
                  .run = [&] { filled->Insert(batch++ % KernelBench::kCalls, kCacheBatch, stream); },
                  .result = filled->slots(),
                  .result_bytes = sizeof(uint32_t) * kCacheBatch});

  bench->Measure({.name = "cache_mark_dirty",
                  .kernels = "MarkKernel",
                  .rows = kCacheBatch,
                  .dim = kCacheDim,
                  .bytes = (4.0 + 1) * kCacheBatch,
                  .run = [&] { cache->MarkDirty(filled->slots(), kCacheBatch, nullptr, stream); },
                  .result = cache->index().dirty,
                  .result_bytes = cache->slots()});
  // All rows of the first slots. Of each: its mark in and out, its entry in and its name out, its record in and out.
  std::vector<uint32_t> first(kCacheBatch);
  for (uint32_t i = 0; i < kCacheBatch; ++i) first[i] = i;
  const DeviceBuffer<uint32_t> first_slots = Upload(first, stream);
  const DeviceEvicted out = filled->evicted();
  bench->Measure({.name = "cache_take_dirty",
                  .kernels = "TakeKernel GatherKernel",
                  .rows = kCacheBatch,
                  .dim = kCacheDim,
                  .bytes = (1.0 + 1 + 16 + 16 + 2 * record) * kCacheBatch,
                  .before = [&] { cache->MarkDirty(first_slots.data(), kCacheBatch, nullptr, stream); },
                  .run =
                      [&] {
                        cache->TakeDirty(0, kCacheBatch, {out.names, out.records, kCacheBatch, out.count}, stream);
                      },
                  .result = out.records,
                  .result_bytes = static_cast<size_t>(record) * kCacheBatch});
}

void MeasureUnique(KernelBench* bench) {
  constexpr uint32_t kFeatures = 26, kSamples = 65536, kRows = 1'000'000, kNames = kFeatures * kSamples;
  const Stream& stream = bench->stream();
  std::vector<RowName> host(kNames);
  for (uint32_t i = 0; i < kNames; ++i) host[i] = {Mix64(RankOf(RandomUniform(1, i), kRows, false)), i / kSamples};
  const DeviceBuffer<RowName> names = Upload(host, stream);
  DeviceBuffer<RowName> unique = Allocate<RowName>(kNames);
  DeviceBuffer<uint32_t> count = Allocate<uint32_t>(1), index = Allocate<uint32_t>(kNames);
  DeviceBuffer<char> workspace = Allocate<char>(UniqueWorkspaceBytes(kNames));
  const auto run = [&] {
    UniqueNamesGpu({names.data(), kNames, nullptr}, {unique.data(), count.data(), index.data()},
                   {workspace.data(), workspace.size()}, stream);
  };
  run();
  bench->Measure({.name = "unique_names",
                  .kernels = "FirstKernel UniqueKernel",
                  .rows = kNames,
                  .bytes = 20.0 * kNames + 16.0 * Download(count.data(), 1, stream)[0],
                  .run = run,
                  .result = index.data(),
                  .result_bytes = index.size() * sizeof(uint32_t)});
}

}  // namespace sparrow::bench
