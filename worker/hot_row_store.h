#ifndef SPARROW_WORKER_HOT_ROW_STORE_H_
#define SPARROW_WORKER_HOT_ROW_STORE_H_

// Where the rows that a worker holds itself lie, and what is done to them there: in the memory of the CPU or of a GPU.
// What moves them between here and the servers is worker/hot_rows.h, the same for both. Only names and records of rows
// that come or go pass through this interface: what a batch finds in the cache, the host of a GPU never sees.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "embedding/apply.h"
#include "embedding/row_cache.h"
#include "embedding/row_parcel.h"
#include "embedding/table_spec.h"
#include "worker/prepared_batch.h"

namespace sparrow {

// A cache, and which tables it serves.
struct HotRowShare {
  std::vector<uint32_t> tables;  // Of one layout and one optimizer.
  uint64_t bytes = 0;            // RowCacheOptions.bytes.
};

// How long a cache of so many slots keeps rows whatever their recency (RowCacheStep.steps_kept): four times as long as
// what comes in takes to fill it.
class KeptSteps {
 public:
  explicit KeptSteps(uint64_t slots) : slots_(slots) {}
  void Arrived(uint64_t rows) { rows_of_16_ += rows - rows_of_16_ / 16; }
  uint64_t steps() const { return 4 * 16 * slots_ / (rows_of_16_ + 1); }

 private:
  const uint64_t slots_;
  uint64_t rows_of_16_ = 0;  // That came in some 16 steps, the last ones most.
};

// A cache (embedding/row_cache.h) for each share, and places beside it for rows of the batch in work that find none in
// the cache. A batch goes through StartLook, Look, ArrivalRoom and TakeArrivals of each share, Place, TakeLeaving,
// Update, CopyBeside, in this order; StartLook of the next one may come as soon as its rows are placed, and what
// follows TakeLeaving, up to TakeArrivals if none of its rows lies beside the cache. Records come and go packed, as
// messages carry them (embedding/row_parcel.h): memory that servers write to and pushes are sent from. Not thread-safe,
// but for TakeLeaving and LeavingRecords. Errors are final.
class HotRowStore {
 public:
  virtual ~HotRowStore() = default;

  virtual uint32_t slots(size_t share) const = 0;  // Of the cache.

  struct Looked {
    uint64_t rows = 0;                 // Different ones in the batch.
    std::vector<KeysByTable> missing;  // [shares]: those not in the cache, each once.
  };
  // Which rows a batch needs, and which of them have to be fetched. Rows found are used at the batch's step. `missing`
  // is valid until the second StartLook from here. StartLook begins with it and waits for nothing. ResourceExhausted:
  // more rows than a batch may have.
  virtual absl::Status StartLook(const PreparedBatch& batch) = 0;
  virtual absl::StatusOr<Looked> Look() = 0;

  // Room for the records of the missing rows, in any order, and for where in it each missing row's is.
  struct Room {
    std::span<char> records;        // [missing, record_bytes], aligned as floats.
    std::span<uint32_t> positions;  // [missing]
  };
  virtual Room ArrivalRoom(size_t share) = 0;
  // They are there; nobody writes to the room any more.
  virtual void TakeArrivals(size_t share) = 0;

  // Puts the rows that have arrived into the cache, or beside it; only rows that the batch does not use leave the cache
  // for them. All rows of the batch are in place then: they are what the trainer reads, and stay there until Update has
  // returned.
  virtual absl::Status Place(PreparedBatch* batch) = 0;

  struct Leaving {
    KeysByTable evicted;               // From the cache.
    std::span<const uint32_t> beside;  // Positions among the missing rows of those that lie beside the cache.
  };
  // What the last Place has driven out. Valid until the next TakeLeaving, but `beside` until the next ArrivalRoom.
  // Another thread may call it, while this one calls StartLook at most.
  virtual absl::StatusOr<Leaving> TakeLeaving(size_t share) = 0;
  // What the evicted rows were: [evicted, record_bytes], valid until the next TakeLeaving or TakeDirty. Waits for it,
  // if need be. Another thread may call it, while this one calls what comes before the next Place and is not TakeDirty.
  virtual std::span<const char> LeavingRecords(size_t share) = 0;

  // Updates the batch's rows by its gradients, of partition.keys(), and marks those in the cache dirty. Nothing to do
  // on a GPU, whose trainer has done both. InvalidArgument: a gradient is not finite.
  virtual absl::Status Update(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                              const ApplyOptions& options) = 0;

  // The rows that lie beside the cache, as they are now, in the order of Leaving.beside: [beside, slot_bytes]. Valid
  // until the next TakeLeaving or TakeDirty.
  virtual absl::StatusOr<std::span<const char>> CopyBeside(size_t share) = 0;

  // The dirty rows of slots [first, first + n) of the cache; they stay, clean. Between Update of a batch, and
  // CopyBeside if rows lie beside the cache, and Place of the next.
  virtual absl::StatusOr<DirtyRows> TakeDirty(size_t share, uint32_t first, uint32_t n) = 0;
};

// ResourceExhausted: the machine has not as much memory free as the shares take.
absl::Status CheckMemoryFor(std::span<const HotRowShare> shares);

// In the CPU's memory. `tables` outlive it. ResourceExhausted: the machine has not as much memory free.
absl::StatusOr<std::unique_ptr<HotRowStore>> MakeCpuHotRowStore(std::span<const HotRowShare> shares,
                                                                std::span<const TableSpec> tables);

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_ROW_STORE_H_
