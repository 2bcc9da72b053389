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
// Where no row lies beside the cache, that push does not depend on the step: it goes out as soon as the step's rows are
// in place, beside a GPU on a thread of its own, and then the next step's rows, late ones too, can be here before the
// step is over. Records are written by servers, and sent from, where the store has them.
//
// Nothing here changes a number: a row has the same updates in the same order as on a server (embedding/apply.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/synchronization/notification.h"
#include "embedding/key_filter.h"
#include "embedding/row_cache.h"
#include "embedding/table_spec.h"
#include "sparrow/v1/job.pb.h"
#include "worker/hot_row_store.h"
#include "worker/outgoing_records.h"
#include "worker/side_thread.h"
#include "worker/step_rows.h"

namespace sparrow {

// Tables of one layout and one optimizer share a cache. Each table adds to its cache an equal number of slots, as many
// as the budget gives, or if it is bounded and small half as many more than it has rows: then it is held as a whole.
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
    int return_cores;  // That may be busy with what leaves, beside the step's thread; 0: that one is.
    const WorkerMetrics* metrics;
  };
  explicit HotRows(const Parts& parts);
  ~HotRows() override;

  absl::Status StartPull(PreparedBatch* batch) override;
  absl::Status Continue() override;
  absl::Status BringRows() override;
  absl::Status FinishPull(PreparedBatch* batch) override;
  absl::Status PushEarly(const PreparedBatch& batch, double learning_rate_factor) override;
  absl::Status StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                         double learning_rate_factor) override;
  absl::Status StartSkip(const PreparedBatch& batch) override;
  absl::Status FinishPush() override;
  absl::Status WriteBack(uint64_t step) override;

 private:
  // Rows on their way here.
  struct Incoming {
    KeyPartition partition;
    bool arrived = false;  // In the store's hands.
  };

  const RowLayout& LayoutOf(size_t share) const { return layouts_[shares_[share].tables[0]]; }
  // Waits for the pull, and gives its rows to the store.
  absl::Status TakeArrivals();
  // Learns from the store what the step in work has driven out. On the side thread.
  absl::Status TakeLeaving();
  // Waits until that is known.
  absl::Status AwaitLeaving();
  void AddOutgoing(std::span<const RowName> names, std::span<const char> records /*[names, slot_bytes]*/);
  // Sends the rows that were evicted, and what was added to outgoing_. On the side thread.
  void Return(const PsPush::Step& step);
  absl::Status AwaitPush();
  // Unless the push has gone out early: adds the rows beside the cache, and sends it.
  absl::Status PushBeside(const PsPush::Step& step);

  PsClient* const client_;
  const bool ahead_;
  const WorkerMetrics& metrics_;
  const std::span<const TableSpec> tables_;
  const std::span<const HotRowShare> shares_;
  std::vector<RowLayout> layouts_;  // [tables]
  HotRowStore* const store_;
  uint64_t bytes_ = 0;  // Of the caches.

  HotRowStore::Looked looked_;  // Of the batch whose pull has started last.
  Incoming incoming_;           // Of the same.
  // Of the side thread between PushEarly and AwaitLeaving:
  std::vector<KeysByTable> evicted_;                 // [shares]: by the step in work,
  std::vector<std::vector<RowName>> beside_;         // and its rows beside the cache.
  bool pushed_early_ = false;                        // The present step's push is under way or over: none is beside.
  std::unique_ptr<KeyFilter> returning_;             // The keys of the present step's push. Null before the first.
  absl::Status left_;                                // What TakeLeaving returned.
  std::optional<absl::Notification> leaving_known_;  // None: that has been waited for.
  PsPull pull_;
  // Of the side thread between PushEarly and FinishPush:
  OutgoingRecords outgoing_;
  PsPush push_;
  SideThread side_;  // Last: it uses the others.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_ROWS_H_
