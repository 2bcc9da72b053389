#ifndef SPARROW_WORKER_REPLICATED_ROWS_H_
#define SPARROW_WORKER_REPLICATED_ROWS_H_

// Rows that all workers of a job hold, with their optimizer state, in front of the servers (TrainConfig.hot_rows of
// several workers). Each worker has a copy of each of these rows, gets the others' gradients in every step, and makes
// the same update; the other rows live on the servers, as without. So a hot row costs one exchange of gradients a step,
// and neither a pull nor a push.
//
// Which rows are hot, the workers decide together (worker/hot_set.h), now and then. Say they do so in step t:
//
//   t      with the gradients each worker tells which rows it used most; all draw the same conclusion.
//   t + 1  rows that are to leave are updated for the last time, and go back with this step's push, from rank 0 alone.
//          Beside it, every worker asks for the rows that come in, as whole records, and looks up the batch of t + 2 as
//          if the change had been made.
//   t + 2  the records are there, as t + 1 has left them on the servers.
//
// A look-up runs up to one step ahead, whenever a batch happens to be ready, so a decision cannot take effect sooner;
// nothing else depends on when it ran. The next decision is made in t + 2 at the earliest.
//
// Nothing here changes a number: a row has the same updates in the same order, of the same sums, as on a server.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dense/collective.h"
#include "embedding/table_spec.h"
#include "worker/hot_message.h"
#include "worker/hot_replica.h"
#include "worker/hot_row_store.h"
#include "worker/hot_set.h"
#include "worker/outgoing_records.h"
#include "worker/side_thread.h"
#include "worker/step_rows.h"

namespace sparrow {

// Whether workers decide in a step, so many after the first: often at the beginning, when nothing is hot yet.
bool DecidesHotRows(uint64_t steps_done);

class ReplicatedRows final : public StepRows {
 public:
  // All outlive it. Every worker of the job has the same tables and shares.
  struct Parts {
    std::span<const TableSpec> tables;    // Of float32 storage, without admission and eviction.
    std::span<const HotRowShare> shares;  // ShareHotRows of the tables.
    HotReplica* replica;                  // Of the shares.
    bool early;        // The gradients of held rows are exchanged while a GPU computes them, on a thread of its own.
    PsClient* client;  // Its tables have record_floats; its rows and gradients are float32.
    Collective* collective;
    bool ahead;  // As in MakeServerRows.
    const WorkerMetrics* metrics;
  };
  explicit ReplicatedRows(const Parts& parts);
  ~ReplicatedRows() override;

  absl::Status StartPull(PreparedBatch* batch) override;
  absl::Status Continue() override {
    pull_.AskForPending();
    return absl::OkStatus();
  }
  absl::Status FinishPull(PreparedBatch* batch) override;
  absl::Status PushEarly(const PreparedBatch& batch, double learning_rate_factor) override;
  // Exchanges what the workers have for hot rows: all are in the same step. (Where Parts.early says so, PushEarly has.)
  absl::Status StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                         double learning_rate_factor) override;
  // All workers skip the step: none exchanges anything, and nothing is decided.
  absl::Status StartSkip(const PreparedBatch& batch) override;
  absl::Status FinishPush() override;
  // Rank 0 writes back for all, once all have finished the step, and the others wait for it.
  absl::Status WriteBack(uint64_t step) override;

 private:
  // A decision that is being carried out.
  struct Change {
    uint64_t step = 0;                        // Of the first batch that is looked up with it. 0: there is none.
    bool asked = false;                       // Look-ups know of it, and the rows that come in have been asked for.
    std::vector<std::vector<HotSeat>> seats;  // [shares]
    KeyPartition partition;                   // Of the rows that come in.
    std::vector<std::vector<float>> records;  // [tables]: theirs, in its order.
  };

  absl::Status AskForChange();
  absl::Status SettleChange();
  // The late keys of a batch whose look-up is under way.
  KeyFilter LateKeys() const;
  bool Decides(uint64_t step) const;
  // Exchanges what the workers have for hot rows, and updates these.
  absl::Status UpdateHotRows(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                             double learning_rate_factor);
  absl::StatusOr<std::vector<std::string>> Exchange(const PreparedBatch& batch,
                                                    std::span<const std::span<const float>> gradients);
  absl::Status Decide(uint64_t step);
  // Sends a step's gradients, of `partition`, and what leaves with it.
  absl::Status Push(const PsPush::Step& step, const KeyPartition& partition,
                    std::span<const std::span<const float>> gradients);

  PsClient* const client_;
  Collective* const collective_;
  const bool ahead_;
  const WorkerMetrics& metrics_;
  const std::span<const TableSpec> tables_;
  const std::span<const HotRowShare> shares_;
  HotReplica* const replica_;
  const bool early_;
  std::vector<size_t> share_of_;  // [tables]
  uint64_t slots_ = 0;            // Over all shares. 0: no row is ever hot, and nothing is exchanged.

  std::vector<HotSet> sets_;    // [shares]
  std::vector<ColdUses> cold_;  // [shares]
  // Of the cold rows:
  KeyPartition now_;           // of the batch whose pull has finished,
  KeyPartition next_;          // and of the one whose pull has started,
  HotReplica::Looked looked_;  // which this has been found of.
  Change change_;
  std::optional<uint64_t> first_step_;
  std::vector<std::vector<RowUses>> candidates_;  // [shares]: of a decision that is to be made.

  std::string message_;
  std::vector<std::vector<float>> cold_gradients_;  // [tables], in the order of now_.
  uint64_t pushed_ = 0;                             // Gradients on their way.
  OutgoingRecords outgoing_;
  PsPull pull_;
  PsPull change_pull_;
  PsPush push_;
  absl::Status exchanged_;  // Of the side thread between PushEarly and StartPush.
  SideThread side_;         // Last: it uses the others. Where Parts.early says so, it exchanges.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_REPLICATED_ROWS_H_
