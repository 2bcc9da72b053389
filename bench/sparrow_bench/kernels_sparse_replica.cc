// The kernels for rows that all workers hold of `sparrow-bench kernels`, as bench/sparrow_bench/kernels_sparse.cc.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/random.h"
#include "bench/sparrow_bench/kernel_bench.h"
#include "bench/support/gpu_lookups.h"
#include "embedding/replica_gpu.h"
#include "embedding/row_cache_gpu.h"

namespace sparrow::bench {

// A million rows of dimension 64 in a cache of 4 M slots, records of row-wise Adagrad, anywhere in it.
void MeasureReplica(KernelBench* bench) {
  constexpr uint32_t kRows = 1 << 20, kSlots = 4 << 20, kDim = 64;
  const Stream& stream = bench->stream();
  const RowLayout layout(kDim, SparseOptimizerKind::kRowwiseAdagrad);
  const double record = static_cast<double>(layout.record_bytes());
  const RowCacheOptions options{.layout = layout, .bytes = kSlots * RowCacheSlotBytes(layout), .batch_rows = kRows};
  std::optional<RowCacheGpu> cache = RowCacheGpu::Make(options, stream);
  CHECK(cache.has_value()) << "no GPU memory for a cache of " << kSlots << " slots";
  CHECK_EQ(cache->slots(), kSlots);
  std::vector<RowName> host_names(kRows);
  std::vector<uint32_t> host_slots(kRows), host_found(kRows), host_missing, host_positions(kRows);
  for (uint32_t i = 0; i < kRows; ++i) {
    host_names[i] = {.key = RandomBits(1, i), .table = i % 26};
    host_slots[i] = static_cast<uint32_t>(uint64_t{i} * 1'048'583 % kSlots);  // Each once, far apart.
    host_found[i] = RandomBits(2, i) % 4 == 0 ? kNoSlot : host_slots[i];
    if (host_found[i] == kNoSlot) host_missing.push_back(i);
    host_positions[i] = static_cast<uint32_t>(uint64_t{i} * 7919 % kRows);
  }
  const std::vector<uint32_t> host_counts = {kRows, static_cast<uint32_t>(host_missing.size())};
  host_missing.resize(kRows);
  const DeviceBuffer<RowName> names = Upload(host_names, stream);
  const DeviceBuffer<uint32_t> slots = Upload(host_slots, stream), found = Upload(host_found, stream);
  const DeviceBuffer<uint32_t> missing = Upload(host_missing, stream), counts = Upload(host_counts, stream);
  const DeviceBuffer<uint32_t> positions = Upload(host_positions, stream);
  DeviceBuffer<uint32_t> order = Allocate<uint32_t>(kRows), in_order = Allocate<uint32_t>(kRows);
  DeviceBuffer<uint32_t> taken = Allocate<uint32_t>(1), uses = Allocate<uint32_t>(kSlots);
  DeviceBuffer<char> packed = Allocate<char>(kRows * layout.record_bytes());
  DeviceBuffer<char> rows = Allocate<char>(kRows * layout.slot_bytes());
  DeviceBuffer<uint64_t> sum = Allocate<uint64_t>(1);
  packed.Fill(0x3d, stream);
  uses.Fill(0, stream);
  sum.Fill(0, stream);
  const auto measure = [&](const char* name, const char* kernels, double row_bytes, auto run, const void* result,
                           size_t result_bytes) {
    bench->Measure({.name = name,
                    .kernels = kernels,
                    .rows = kRows,
                    .dim = kDim,
                    .bytes = row_bytes * kRows,
                    .run = run,
                    .result = result,
                    .result_bytes = result_bytes});
  };
  const DeviceRowIndex& index = cache->index();
  measure(
      "replica_seats", "SeatKernel", 37,
      [&] { SeatNamesGpu(names.data(), slots.data(), kRows, cache->index(), stream); }, index.digests, kSlots);
  measure(
      "replica_hot_first", "HotFirstKernel", 16,
      [&] {
        HotFirstGpu({.max = kRows,
                     .count = counts.data(),
                     .slots = found.data(),
                     .missing = missing.data(),
                     .missing_count = counts.data() + 1},
                    kSlots, order.data(), in_order.data(), taken.data(), stream);
      },
      taken.data(), sizeof(uint32_t));
  measure(
      "replica_weights", "WeightsKernel", 4 + 8.0 * kDim,
      [&] {
        PlaceWeightsGpu(reinterpret_cast<const float*>(packed.data()), positions.data(), kRows, kDim,
                        layout.slot_bytes(), rows.data(), stream);
      },
      rows.data(), rows.size());
  measure(
      "replica_put", "PutKernel", 9 + 2 * record,
      [&] {
        PutRecordsGpu(packed.data(), positions.data(), slots.data(), kRows, cache->records(), index.dirty, stream);
      },
      cache->records().data, kSlots * layout.slot_bytes());
  measure(
      "replica_clean", "CleanKernel", 5, [&] { CleanRowsGpu(slots.data(), kRows, index.dirty, stream); }, index.dirty,
      kSlots);
  measure(
      "replica_count_uses", "CountUsesKernel", 12,
      [&] { CountUsesGpu(slots.data(), kRows, 1, uses.data(), kSlots, stream); }, uses.data(),
      kSlots * sizeof(uint32_t));
  measure(
      "replica_set_uses", "SetUsesKernel", 12,
      [&] { SetUsesGpu(slots.data(), positions.data(), kRows, uses.data(), stream); }, uses.data(),
      kSlots * sizeof(uint32_t));
  measure(
      "replica_digest", "DigestKernel", 4 + record,
      [&] { DigestRecordsGpu(cache->records(), slots.data(), kRows, kSlots, sum.data(), stream); }, sum.data(),
      sizeof(uint64_t));
}

}  // namespace sparrow::bench
