#ifndef SPARROW_WORKER_HOT_REPLICA_H_
#define SPARROW_WORKER_HOT_REPLICA_H_

// This worker's copy of the rows that all workers of a job hold: where it lies, and what is done to it there, in the
// memory of the CPU (worker/hot_records.h) or of a GPU (worker/hot_replica_gpu.h). Which rows they are, what they are
// exchanged for and when is worker/replicated_rows.h's affair, the same for both.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "embedding/apply.h"
#include "embedding/row_cache.h"
#include "worker/hot_message.h"
#include "worker/hot_set.h"
#include "worker/prepared_batch.h"

namespace sparrow {

// A batch goes through Look, Room, Place, Tell, Update; Look of the next one may come once the batch is being computed.
// Sets are those of the shares, and where a set changes, the calls below say so. Not thread-safe; but where rows are on
// a GPU, another thread may call digest, Tell and Update of a batch while this one calls Redirect, Look and Room for
// the next. Errors are final.
class HotReplica {
 public:
  virtual ~HotReplica() = default;

  virtual uint64_t bytes() const = 0;
  // Whether batches are looked up by their ids as they were read, and Update may come once a batch has been started,
  // and begins the sums of dense gradients behind it (BatchTrainer::Start does not). Else a batch has unique keys, and
  // its gradients are there for Tell.
  virtual bool on_gpu() const = 0;

  struct Looked {
    uint64_t hits = 0;                       // Different rows of the batch that are held;
    std::vector<std::span<const Key>> cold;  // [tables]: the others, each once. Valid until the second Look from here.
  };
  // Which rows of the batch are held as HotSet::Find has it.
  virtual absl::StatusOr<Looked> Look(const PreparedBatch& batch, std::span<const HotSet> sets) = 0;
  // Room for the weights of the cold rows, in any order: [cold, dim] for each table.
  virtual std::vector<std::span<float>> Room() = 0;
  // They are there, in the order of the partition. All rows of the batch are in place then, for whoever computes it.
  virtual absl::Status Place(const KeyPartition& cold, PreparedBatch* batch) = 0;
  // Where the cold rows of the batch placed last stand among the gradients that its trainer returns; empty: these are
  // theirs alone.
  virtual std::span<const uint32_t> cold_at(uint32_t table) const = 0;

  // What this worker tells of the held rows of the batch placed last. Of the CPU: `gradients`, as its trainer has
  // returned them, stay as they are until the message has been written.
  virtual void Tell(std::span<const std::span<const float>> gradients, HotMessage* message) = 0;
  // One update of each row that some worker has a gradient for: of their sum, in the order of ranks; and each worker
  // has used the row (HotSet::Use). With `digests` the new values count in digest(). FailedPrecondition: a worker has
  // two gradients for a row.
  virtual absl::Status Update(std::span<const HotMessage> by_rank, const ApplyOptions& options, bool digests,
                              std::span<HotSet> sets) = 0;
  // How much longer than the step's computation an update took that a GPU was given beside it: the one two before the
  // last, which is known to be over. None: none was.
  virtual std::optional<double> exposed_seconds() const = 0;
  // Waits for the updates so far, where they were only begun. InvalidArgument: a gradient was not finite; its row is as
  // it was.
  virtual absl::Status Settle() = 0;
  // Of the values that updates with `digests` have left, equal where they are. Waits for the last of these.
  virtual absl::StatusOr<uint64_t> digest() = 0;
  // Before HotSet::Decide with candidates: the sets know all uses.
  virtual absl::Status CountUses(std::span<HotSet> sets) = 0;

  // Look-ups find the rows that come in from now on (HotSet::Redirect).
  virtual absl::Status Redirect(size_t share, std::span<const HotSeat> seats) = 0;
  // The rows that leave, as they are, [seats, slot_bytes]; valid until the next call of it or of TakeDirty. No longer
  // dirty.
  virtual absl::StatusOr<std::span<const char>> TakeLeaving(size_t share, std::span<const HotSeat> seats) = 0;
  // The rows that come in, clean, after HotSet::Settle of their seats: whole records, [record_bytes] each.
  virtual absl::Status Put(size_t share, std::span<const HotSeat> seats, std::span<const char* const> records,
                           const HotSet& set) = 0;

  // The dirty rows of slots [first, first + n); they stay, clean. Between Update of a batch and Place of the next.
  virtual absl::StatusOr<DirtyRows> TakeDirty(size_t share, uint32_t first, uint32_t n, const HotSet& set) = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_REPLICA_H_
