#ifndef SPARROW_WORKER_HOT_RECORDS_H_
#define SPARROW_WORKER_HOT_RECORDS_H_

// The rows that all workers of a job hold, as this worker has them in the CPU's memory: records by slot. It sums the
// workers' gradients as a server does, and updates rows by the same arithmetic, so its rows have the bits that a server
// would give them, and every worker's are equal.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "embedding/apply.h"
#include "embedding/table_spec.h"
#include "worker/hot_message.h"
#include "worker/hot_replica.h"
#include "worker/hot_row_store.h"

namespace sparrow {

// Uses all cores itself. Batches' rows are filled; gradients are of partition.keys().
class HotRecords final : public HotReplica {
 public:
  // shares and tables outlive it. ResourceExhausted: the machine has not as much memory free.
  static absl::StatusOr<std::unique_ptr<HotRecords>> Make(std::span<const HotRowShare> shares,
                                                          std::span<const TableSpec> tables);

  static uint32_t Buckets(const HotRowShare& share, std::span<const TableSpec> tables);  // Of slots.

  uint64_t bytes() const override;
  bool on_gpu() const override { return false; }
  absl::StatusOr<Looked> Look(const PreparedBatch& batch, std::span<const HotSet> sets) override;
  std::vector<std::span<float>> Room() override;
  absl::Status Place(const KeyPartition& cold, PreparedBatch* batch) override;
  std::span<const uint32_t> cold_at(uint32_t table) const override { return now_[table].cold_at; }
  void Tell(std::span<const std::span<const float>> gradients, HotMessage* message) override;
  absl::Status Update(std::span<const HotMessage> by_rank, const ApplyOptions& options, bool digests,
                      std::span<HotSet> sets) override;
  std::optional<double> exposed_seconds() const override { return std::nullopt; }
  absl::Status Settle() override { return absl::OkStatus(); }
  absl::StatusOr<uint64_t> digest() override { return digest_; }
  absl::Status CountUses(std::span<HotSet>) override { return absl::OkStatus(); }
  absl::Status Redirect(size_t, std::span<const HotSeat>) override { return absl::OkStatus(); }
  absl::StatusOr<std::span<const char>> TakeLeaving(size_t share, std::span<const HotSeat> seats) override;
  absl::Status Put(size_t share, std::span<const HotSeat> seats, std::span<const char* const> records,
                   const HotSet& set) override;
  absl::StatusOr<DirtyRows> TakeDirty(size_t share, uint32_t first, uint32_t n, const HotSet& set) override;

 private:
  struct Share {
    RowLayout layout;
    std::vector<char> records;   // [slots, slot_bytes]
    std::vector<uint8_t> dirty;  // [slots]
    std::vector<char> leaving;
  };
  // Where a batch's rows of one table are.
  struct BatchTable {
    std::vector<uint32_t> hot_at;   // Positions in the batch's keys,
    std::vector<uint32_t> slots;    // and the slots of these rows.
    std::vector<uint32_t> cold_at;  // Positions of the others,
    std::vector<Key> cold;          // their keys,
    std::vector<float> pulled;      // and weights, in the order of the partition.
  };

  HotRecords(std::span<const HotRowShare> shares, std::span<const TableSpec> tables);

  const char* record(size_t share, uint32_t slot) const {
    return shares_[share].records.data() + slot * shares_[share].layout.slot_bytes();
  }
  // rows[at[i]] becomes the weights of the row in slots[i].
  void CopyWeights(size_t share, std::span<const uint32_t> slots, std::span<const uint32_t> at,
                   std::span<float> rows /*[.., dim]*/) const;
  absl::Status UpdateTable(uint32_t table, const HotSet& set, std::span<const HotGradients> by_rank,
                           const ApplyOptions& options, bool digests);

  const std::span<const TableSpec> tables_;
  std::vector<size_t> share_of_;  // [tables]
  std::vector<Share> shares_;
  std::vector<BatchTable> now_;           // [tables] Of the batch placed last,
  std::vector<BatchTable> next_;          // and of the one looked up last.
  std::vector<uint32_t> found_;           // Slots of the keys that are being looked up.
  std::vector<std::vector<float>> told_;  // [tables]: the gradients of a message.
  uint64_t digest_ = 0;
  // Of Update, kept from step to step.
  std::vector<uint32_t> rows_;                      // Slots to be updated,
  absl::flat_hash_map<uint32_t, uint32_t> row_of_;  // and where in rows_ a slot stands.
  std::vector<uint32_t> sources_;  // [rows_, ranks]: 1 + the row's position among a rank's gradients. 0: it has none.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_RECORDS_H_
