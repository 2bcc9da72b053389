#ifndef SPARROW_WORKER_HOT_RECORDS_H_
#define SPARROW_WORKER_HOT_RECORDS_H_

// The rows that all workers of a job hold, as this worker has them: records by slot, in the CPU's memory. It sums the
// workers' gradients as a server does, and updates rows by the same arithmetic, so its rows have the bits that a server
// would give them, and every worker's are equal.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "embedding/apply.h"
#include "embedding/table_spec.h"
#include "worker/hot_message.h"
#include "worker/hot_row_store.h"

namespace sparrow {

// Not thread-safe; uses all cores itself.
class HotRecords {
 public:
  // shares and tables outlive it. ResourceExhausted: the machine has not as much memory free.
  static absl::StatusOr<std::unique_ptr<HotRecords>> Make(std::span<const HotRowShare> shares,
                                                          std::span<const TableSpec> tables);

  static uint32_t Buckets(const HotRowShare& share, std::span<const TableSpec> tables);  // Of slots.
  uint64_t bytes() const;

  // A whole record, which comes from the server and is clean.
  void Put(size_t share, uint32_t slot, const char* record);
  const char* record(size_t share, uint32_t slot) const;
  // rows[at[i]] becomes the weights of the row in slots[i].
  void CopyWeights(size_t share, std::span<const uint32_t> slots, std::span<const uint32_t> at,
                   std::span<float> rows /*[.., dim]*/) const;

  // One update of each row that some worker has a gradient for: of their sum, in the order of ranks. They are dirty
  // then. With `digest`, adds one of the new values to it, whatever the order. FailedPrecondition, before a row
  // changes: a worker has two gradients for a row. REQUIRES: slots of rows
  // in the set, which is of the share.
  absl::Status Update(size_t share, const TableSpec& spec, const HotSet& set, std::span<const HotGradients> by_rank,
                      const ApplyOptions& options, uint64_t* digest);

  // The dirty slots of [first, first + n) become clean.
  std::vector<uint32_t> TakeDirty(size_t share, uint32_t first, uint32_t n);
  void Clean(size_t share, uint32_t slot) { shares_[share].dirty[slot] = 0; }

 private:
  struct Share {
    RowLayout layout;
    std::vector<char> records;   // [slots, slot_bytes]
    std::vector<uint8_t> dirty;  // [slots]
  };

  HotRecords() = default;

  std::vector<Share> shares_;
  // Of Update, kept from step to step.
  std::vector<uint32_t> rows_;                      // Slots to be updated,
  absl::flat_hash_map<uint32_t, uint32_t> row_of_;  // and where in rows_ a slot stands.
  std::vector<uint32_t> sources_;  // [rows_, ranks]: 1 + the row's position among a rank's gradients. 0: it has none.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_RECORDS_H_
