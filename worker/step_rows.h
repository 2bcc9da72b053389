#ifndef SPARROW_WORKER_STEP_ROWS_H_
#define SPARROW_WORKER_STEP_ROWS_H_

// Where the rows of a training step come from, and where their gradients go: to the servers, which hold and update all
// rows, or first to the rows that the worker holds itself (worker/hot_rows.h).

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "worker/metrics.h"
#include "worker/prepared_batch.h"
#include "worker/ps_client.h"

namespace sparrow {

// One step after the other; what belongs to the next one begins beside the present one. Not thread-safe. Errors are
// final.
class StepRows {
 public:
  virtual ~StepRows() = default;

  // Asks for the rows of a batch, whose memory stays as it is until FinishPull; does not wait for a server.
  virtual absl::Status StartPull(PreparedBatch* batch) = 0;
  // Goes on with that pull as far as answers are there: asks again for rows that could not be answered early, or brings
  // rows on their way that have come. Never waits for a server.
  virtual absl::Status Continue() = 0;
  // While the present step is computed elsewhere: waits for rows that can come before it is over, and brings them on
  // their way. After StartPull of the next batch.
  virtual absl::Status BringRows() { return absl::OkStatus(); }
  // Waits until batch->rows are filled. REQUIRES: StartPull of the same batch.
  virtual absl::Status FinishPull(PreparedBatch* batch) = 0;

  // The batch is being computed: what does not depend on it may be sent beside it, at the latest with the next
  // StartPull. REQUIRES: FinishPull of the batch, and StartPull of no other since.
  virtual absl::Status PushEarly(const PreparedBatch& batch, double learning_rate_factor) = 0;
  // The rows of the batch change by these gradients, of partition.keys(), which stay as they are until FinishPush.
  // REQUIRES: PushEarly of the batch.
  virtual absl::Status StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                                 double learning_rate_factor) = 0;
  // Instead of StartPush: the rows of the batch stay as they are, and the step is over for the servers all the same.
  virtual absl::Status StartSkip(const PreparedBatch& batch) = 0;
  // Waits until all servers have taken what the step has for them.
  virtual absl::Status FinishPush() = 0;

  // Afterwards the servers have every row as it is after `step` steps, for an evaluation or a checkpoint.
  // REQUIRES: between FinishPush of the step before and FinishPull of the next.
  virtual absl::Status WriteBack(uint64_t step) = 0;
};

// All rows are the servers'. `ahead`: the next step's are asked for early. client and metrics outlive it.
std::unique_ptr<StepRows> MakeServerRows(PsClient* client, bool ahead, const WorkerMetrics* metrics);

}  // namespace sparrow

#endif  // SPARROW_WORKER_STEP_ROWS_H_
