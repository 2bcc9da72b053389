#ifndef SPARROW_WORKER_HOT_ROWS_H_
#define SPARROW_WORKER_HOT_ROWS_H_

// Rows that a lone worker holds itself, with their optimizer state, in front of the servers (TrainConfig.hot_rows). The
// servers lend every row that a batch uses (PullRequest.records); the worker updates it, and keeps it while its cache
// has room. So a row is in one of three places, and each update is made in one:
//
//   at its server   not lent. A batch that needs it pulls it, for the most part while the step before computes.
//   in the cache    lent. A batch finds it there; it leaves when another row needs its place, with the next push.
//   beside it       lent for one step, because the cache had no place; it goes back with that step's push.
//
// Rows of the batch in work are pinned: the cache evicts only what the step in work does not use. What a step's push
// returns is known before the next batch is looked up, so that a row on its way back is pulled late, behind the push.
//
// Nothing here changes a number: a row has the same updates in the same order as on a server (embedding/apply.h).

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "embedding/key_filter.h"
#include "embedding/row_cache.h"
#include "embedding/table_spec.h"
#include "sparrow/v1/job.pb.h"
#include "worker/hot_row_store.h"
#include "worker/step_rows.h"

namespace sparrow {

// Tables of one layout and one optimizer share a cache. Each table adds to its cache an equal number of rows, as many
// as the budget gives, or if it is bounded and smaller as many as it has.
std::vector<HotRowShare> ShareHotRows(const v1::HotRows& budget, std::span<const TableSpec> tables);

class HotRows final : public StepRows {
 public:
  // All outlive it.
  struct Parts {
    std::span<const TableSpec> tables;    // Of float32 storage, without admission and eviction.
    std::span<const HotRowShare> shares;  // ShareHotRows of the tables.
    HotRowStore* store;                   // Of the shares.
    PsClient* client;                     // Its tables have record_floats.
    bool ahead;                           // As in MakeServerRows.
    const WorkerMetrics* metrics;
  };
  explicit HotRows(const Parts& parts);
  ~HotRows() override;

  absl::Status StartPull(PreparedBatch* batch) override;
  void AskForPending() override { pull_.AskForPending(); }
  absl::Status FinishPull(PreparedBatch* batch) override;
  absl::Status StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                         double learning_rate_factor) override;
  absl::Status StartSkip(const PreparedBatch& batch) override;
  absl::Status FinishPush() override;
  absl::Status WriteBack(uint64_t step) override;

 private:
  // Where the rows of a batch are.
  struct BatchShare {
    std::vector<RowName> names;        // [unique], table by table of the share.
    std::vector<uint32_t> slots;       // [unique]; kNoSlot: missing.
    std::vector<uint32_t> missing_at;  // Where the names without a slot stand.
  };
  struct BatchRows {
    std::vector<BatchShare> shares;
    std::vector<std::vector<Key>> missing;   // [tables]: keys without a slot, in the order of names.
    std::vector<std::vector<float>> pulled;  // [tables][missing, record_floats], in the order of the partition.
    KeyPartition partition;                  // Of the missing keys' records.
  };
  // Rows on their way to the servers.
  struct Outgoing {
    std::vector<std::vector<Key>> keys;             // [tables]
    std::vector<std::vector<const char*>> records;  // [tables][keys]
    KeyPartition partition;
    std::vector<std::vector<char>> bytes;  // [tables][keys, record_bytes], in the order of the partition:
    std::vector<std::span<const char>> views;
  };

  // Puts the rows of a share that have arrived into their places.
  absl::Status Place(size_t share, uint64_t step);
  // Sends the rows that leave the worker with the step.
  absl::Status StartReturn(const PsPush::Step& step);
  // Collects what goes to the servers, copies it together, and counts it.
  void ClearOutgoing();
  void AddOutgoing(std::span<const RowName> names, std::span<const char> records /*[names, slot_bytes]*/);
  void PackOutgoing();

  PsClient* const client_;
  const bool ahead_;
  const WorkerMetrics& metrics_;
  const std::span<const TableSpec> tables_;
  const std::span<const HotRowShare> shares_;
  HotRowStore* const store_;
  uint64_t bytes_ = 0;  // Of the caches.

  BatchRows now_;                                   // Of the batch whose pull has finished,
  BatchRows next_;                                  // and of the one whose pull has started.
  std::vector<EvictedRows> evicted_;                // [shares]: by the present step.
  std::vector<std::vector<uint32_t>> slots_;        // [shares]: of the present batch's rows.
  std::vector<std::vector<uint32_t>> beside_;       // [shares]: slots of those beside the cache,
  std::vector<std::vector<RowName>> beside_names_;  // their names,
  std::vector<std::vector<char>> beside_records_;   // and they themselves, after the step.
  Outgoing outgoing_;
  std::unique_ptr<KeyFilter> returning_;  // The keys of the present step's push. Null before the first.
  PsPull pull_;
  PsPush push_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_ROWS_H_
