#ifndef SPARROW_WORKER_HOT_ROW_STORE_GPU_H_
#define SPARROW_WORKER_HOT_ROW_STORE_GPU_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "worker/device_batch.h"
#include "worker/hot_row_store.h"
#include "worker/job_layout.h"

namespace sparrow {

// Rows in GPU memory. A batch is looked up on a stream beside the one that computes: keys of its look-ups, as they were
// read, become names, unique names, slots (embedding/lookup_slots_gpu.h), and the host gets the names of missing rows
// alone. Place queues what puts arrivals into the cache and gives each look-up its slot, and waits for nothing. Whoever
// computes updates the rows, by slots; Place has marked them as changed.
struct GpuHotRowStoreParts {  // All outlive the store.
  const JobLayout* layout;
  std::span<const HotRowShare> shares;
  std::span<const TableSpec> tables;
  int64_t samples_max;    // Of a batch.
  DeviceBatch* batch;     // A group for each share, whose rows are placed in the store. Look is for its input().
  const Stream* compute;  // Where batches are computed.
  const Stream* beside;   // Where the batch's inputs are copied.
};

// Of a feature whose bags may have any length: how many ids a sample has at most, on the average.
inline constexpr uint64_t kBagIdsMax = 64;
inline constexpr uint64_t kBatchRowsMax = (uint64_t{1} << 31) - 1;
// As many rows as a batch can have of the share's tables.
uint64_t BatchRowsMax(const JobLayout& layout, std::span<const TableSpec> tables, const HotRowShare& share,
                      int64_t samples_max);

// ResourceExhausted: the memory of the GPU.
absl::StatusOr<std::unique_ptr<HotRowStore>> MakeGpuHotRowStore(const GpuHotRowStoreParts& parts);

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_ROW_STORE_GPU_H_
