#ifndef SPARROW_SERVER_LOANS_H_
#define SPARROW_SERVER_LOANS_H_

// The rows of a job that its workers hold and update themselves (PullRequest.records): lent, returned, and what may be
// asked of them meanwhile. A row is lent to all workers of the job, who change it equally; one of them returns it.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/task_pool.h"
#include "embedding/table.h"
#include "server/call_memory.h"
#include "server/job_spec.h"
#include "server/lent_rows.h"
#include "server/metrics.h"
#include "server/parallel_tables.h"
#include "server/push_accumulator.h"
#include "server/request_check.h"
#include "server/step_pulls.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// Thread-safe. Errors name job or table, id and step.
class Loans {
 public:
  // All outlive it.
  Loans(const JobSpec* spec, CallMemory* memory, TaskPool* pool, const ServerMetrics& metrics);
  ~Loans();

  // Positions of the keys, ascending, whose rows are lent and here as they were before `step` steps.
  std::vector<uint32_t> Older(uint32_t table, std::span<const Key> keys, uint64_t step) const;
  absl::Status OlderError(uint32_t table, Key key, uint64_t step) const;

  // Answers a pull of records, into rows[i] for request.tables(i) if it is not empty, else into the response, and notes
  // the rows as lent as of its step. `under_way`: of a pull ahead, what the step before its own may change, which stays
  // `pending`; null: all rows are read, and one that is older than the pull's step is FailedPrecondition.
  // ResourceExhausted, like other errors: some may be noted.
  absl::Status Answer(const v1::PullRequest& request, const StepPulls* under_way,
                      std::span<const std::unique_ptr<Table>> tables, std::span<const std::span<float>> rows,
                      v1::PullResponse* response);

  // That all records of a push are of rows that are lent, and no gradient is. InvalidArgument. `plans` are those of
  // request.records() (server/request_check.h).
  absl::Status CheckPush(const v1::PushRequest& request, PlannedTables* plans) const;
  // That no row of a step's gradients is lent when they are to be applied: one may have been, to another worker, after
  // the push had come. FailedPrecondition.
  absl::Status CheckApplied(std::span<const PushPart> parts, uint64_t step) const;
  // Replaces rows by those returned, which are as of `version` steps. `plans` are those of the push, or, of several
  // parts, made here. REQUIRES: CheckPush has passed; keys unique.
  absl::Status PutRecords(std::span<const PushPart> parts, std::span<const std::unique_ptr<Table>> tables,
                          uint64_t version, PlannedTables* plans);
  absl::Status PutRecords(std::span<const ReturnedRows> returned, std::span<const std::unique_ptr<Table>> tables,
                          uint64_t version, PlannedTables* plans);

  // The same for a push that is no part of a step: rows as of its step, beside the readers of that. With `complete` no
  // row is older than that step any more, whatever has been noted of it.
  absl::Status WriteBack(const v1::PushRequest& request, const PushBytes& bytes_of,
                         std::span<const std::unique_ptr<Table>> tables, PlannedTables* plans);

  // FailedPrecondition, with table and number, if a row that is lent is here as it was before `step` steps.
  absl::Status CheckNoneOlder(uint64_t step) const;

 private:
  struct Answered;

  // Of some stripes of a plan of the keys: sets older[position] to 1 as Older says, and returns how many there are;
  // notes as lent all but those whose except[position] is not 0.
  uint64_t MarkOlder(uint32_t table, std::span<const Key> keys, const PlannedStripes& part, uint64_t step,
                     std::span<uint8_t> older) const;
  absl::Status Lend(uint32_t table, std::span<const Key> keys, const PlannedStripes& part,
                    std::span<const uint8_t> except, uint64_t step);
  std::optional<uint32_t> FirstLent(uint32_t table, std::span<const Key> keys) const;
  bool AllReturned(uint64_t step) const { return all_returned_.load(std::memory_order_acquire) == step; }

  const JobSpec& spec_;
  const CallMemory& memory_;
  TaskPool* const pool_;
  const ServerMetrics metrics_;
  std::deque<LentRows> lent_;  // [tables]

  // A worker has said that all rows that are lent have come back as of so many steps. Release and acquire: who sees
  // it sees those rows.
  std::atomic<uint64_t> all_returned_{UINT64_MAX};
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_LOANS_H_
