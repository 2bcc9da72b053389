#ifndef SPARROW_WORKER_HOT_ROW_STORE_H_
#define SPARROW_WORKER_HOT_ROW_STORE_H_

// Where the rows that a worker holds itself lie, and what is done to them there: in the memory of the CPU or of a GPU.
// What moves them between here and the servers is worker/hot_rows.h, the same for both.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "embedding/apply.h"
#include "embedding/row_cache.h"
#include "embedding/table_spec.h"
#include "worker/prepared_batch.h"

namespace sparrow {

// A cache, and which tables it serves.
struct HotRowShare {
  std::vector<uint32_t> tables;  // Of one layout and one optimizer.
  uint64_t bytes = 0;            // RowCacheOptions.bytes.
};

// A cache (embedding/row_cache.h) for each share, and places beside it for rows of the batch in work that find none in
// the cache: slots from slots(share) on. Not thread-safe. Errors are final.
class HotRowStore {
 public:
  virtual ~HotRowStore() = default;

  virtual uint32_t slots(size_t share) const = 0;  // Of the cache.

  // slots[i] is where names[i] lies in the cache, or kNoSlot. Rows found are used at `step`.
  virtual absl::Status Find(size_t share, std::span<const RowName> names, uint64_t step,
                            std::span<uint32_t> slots /*[names]*/) = 0;

  // Room for n records, slot_bytes apart, which Insert takes; valid until then. ResourceExhausted: more rows than a
  // batch may have.
  virtual absl::StatusOr<std::span<char>> ArrivalRoom(size_t share, size_t n) = 0;
  // Gives the rows in ArrivalRoom slots, in the cache or beside it. What leaves the cache for them is written to
  // *evicted; only rows used before `step` do. REQUIRES: names unique and not in the cache.
  virtual absl::Status Insert(size_t share, std::span<const RowName> names, uint64_t step,
                              std::span<uint32_t> slots /*[names]*/, EvictedRows* evicted) = 0;

  // All rows of the batch are in place: slots[s] are those of its keys, table by table of share s, in the order of the
  // batch's partition. Makes them what the trainer reads. The slots stay as they are until Update has returned.
  virtual absl::Status Ready(PreparedBatch* batch, std::span<const std::vector<uint32_t>> slots) = 0;

  // Updates the batch's rows by its gradients, of partition.keys() (a GPU has its own), and marks those in the cache
  // dirty. InvalidArgument: a gradient is not finite. REQUIRES: Ready.
  virtual absl::Status Update(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                              const ApplyOptions& options) = 0;

  // Copies the rows in these slots beside the cache.
  virtual absl::Status CopyBeside(size_t share, std::span<const uint32_t> slots,
                                  std::span<char> records /*[slots, slot_bytes]*/) = 0;

  // The dirty rows of slots [first, first + n) of the cache; they stay, clean.
  virtual absl::StatusOr<DirtyRows> TakeDirty(size_t share, uint32_t first, uint32_t n) = 0;
};

// In the CPU's memory. `tables` outlive it. ResourceExhausted: the machine has not as much memory free.
absl::StatusOr<std::unique_ptr<HotRowStore>> MakeCpuHotRowStore(std::span<const HotRowShare> shares,
                                                                std::span<const TableSpec> tables);

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_ROW_STORE_H_
