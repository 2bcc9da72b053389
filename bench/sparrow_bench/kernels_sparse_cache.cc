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
#include "embedding/lookup_slots_gpu.h"
#include "embedding/row_cache_gpu.h"
#include "embedding/row_parcel_gpu.h"

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

// Rows of 26 tables in any order, records of row-wise Adagrad.
void MeasureParcel(KernelBench* bench) {
  constexpr uint32_t kTables = 26, kRows = 1 << 18;
  const Stream& stream = bench->stream();
  const RowLayout layout(64, SparseOptimizerKind::kRowwiseAdagrad);
  const double record = static_cast<double>(layout.record_bytes());
  std::vector<RowName> host(kRows);
  for (uint32_t i = 0; i < kRows; ++i) {
    host[i] = {.key = RandomBits(1, i), .table = static_cast<uint32_t>(RandomBits(2, i) % kTables)};
  }
  const DeviceBuffer<RowName> names = Upload(host, stream);
  const DeviceNames all{.data = names.data(), .max = kRows};
  DeviceBuffer<uint32_t> order = Allocate<uint32_t>(kRows), begins = Allocate<uint32_t>(kTables + 1);
  DeviceBuffer<uint64_t> keys = Allocate<uint64_t>(kRows);
  DeviceBuffer<char> workspace = Allocate<char>(OrderWorkspaceBytes(kRows, kTables));
  DeviceBuffer<char> slots = Allocate<char>(kRows * layout.slot_bytes());
  DeviceBuffer<char> packed = Allocate<char>(kRows * layout.record_bytes());
  slots.Fill(0x3d, stream);
  bench->Measure({.name = "order_by_table",
                  .kernels = "TablesKernel",
                  .rows = kRows,
                  .bytes = (16.0 + 4) * kRows,
                  .run =
                      [&] {
                        OrderByTableGpu(all, kTables, order.data(),
                                        {.data = workspace.data(), .bytes = workspace.size()}, stream);
                      },
                  .result = order.data(),
                  .result_bytes = order.size() * sizeof(uint32_t)});
  bench->Measure({.name = "list_keys",
                  .kernels = "KeysKernel",
                  .rows = kRows,
                  .bytes = (4.0 + 16 + 8) * kRows,
                  .run = [&] { ListKeysGpu(all, order.data(), kTables, keys.data(), begins.data(), stream); },
                  .result = keys.data(),
                  .result_bytes = keys.size() * sizeof(uint64_t)});
  bench->Measure(
      {.name = "pack_records",
       .kernels = "RecordsKernel",
       .rows = kRows,
       .dim = 64,
       .bytes = (4 + 2 * record) * kRows,
       .run = [&] { PackRecordsGpu(slots.data(), order.data(), kRows, nullptr, layout, packed.data(), stream); },
       .result = packed.data(),
       .result_bytes = packed.size()});
  bench->Measure({.name = "unpack_records",
                  .kernels = "RecordsKernel",
                  .rows = kRows,
                  .dim = 64,
                  .bytes = (4 + 2 * record) * kRows,
                  .run = [&] { UnpackRecordsGpu(packed.data(), order.data(), kRows, layout, slots.data(), stream); },
                  .result = slots.data(),
                  .result_bytes = slots.size()});
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

  // What turns a batch's ids into slots, around the deduplication.
  std::vector<uint64_t> host_keys(kNames);
  std::vector<uint32_t> host_offsets(kNames + 1), host_tables(kFeatures);
  for (uint32_t i = 0; i < kNames; ++i) host_keys[i] = host[i].key;
  for (uint32_t i = 0; i <= kNames; ++i) host_offsets[i] = i;
  for (uint32_t f = 0; f < kFeatures; ++f) host_tables[f] = f;
  const DeviceBuffer<uint64_t> keys = Upload(host_keys, stream);
  const DeviceBuffer<uint32_t> offsets = Upload(host_offsets, stream), tables = Upload(host_tables, stream);
  bench->Measure({.name = "names_of_lookups",
                  .kernels = "NameKernel",
                  .rows = kNames,
                  .bytes = 24.0 * kNames,
                  .run =
                      [&] {
                        NameLookupsGpu({keys.data(), offsets.data(), tables.data(), kFeatures, kSamples, kNames},
                                       unique.data(), stream);
                      },
                  .result = unique.data(),
                  .result_bytes = unique.size() * sizeof(RowName)});
  run();
  std::vector<uint32_t> host_given(kNames), host_positions(kNames);
  for (uint32_t i = 0; i < kNames; ++i) {
    host_given[i] = RandomBits(5, i) % 4 == 0 ? kNoSlot : i;
    host_positions[i] = static_cast<uint32_t>(uint64_t{i} * 7919 % kNames);  // Each once, far apart.
  }
  const DeviceBuffer<uint32_t> positions = Upload(host_positions, stream);
  DeviceBuffer<uint32_t> given = Upload(host_given, stream), slots = Allocate<uint32_t>(kNames);
  DeviceBuffer<uint32_t> output = Allocate<uint32_t>(kNames);
  bench->Measure({.name = "places_of_missing_rows",
                  .kernels = "PlaceMissingKernel",
                  .rows = kNames,
                  .bytes = 16.0 * kNames,
                  .run = [&] { PlaceMissingGpu(positions.data(), kNames, kNames, given.data(), slots.data(), stream); },
                  .result = slots.data(),
                  .result_bytes = slots.size() * sizeof(uint32_t)});
  bench->Measure({.name = "slots_of_lookups",
                  .kernels = "SlotsKernel",
                  .rows = kNames,
                  .bytes = 12.0 * kNames,
                  .run = [&] { SlotsOfLookupsGpu(index.data(), kNames, slots.data(), output.data(), stream); },
                  .result = output.data(),
                  .result_bytes = output.size() * sizeof(uint32_t)});
}

}  // namespace sparrow::bench
