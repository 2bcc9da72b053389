#ifndef SPARROW_SERVER_LOANS_H_
#define SPARROW_SERVER_LOANS_H_

// The rows of a job that its workers hold and update themselves (PullRequest.records): lent, returned, and what may be
// asked of them meanwhile. A row is lent to all workers of the job, who change it equally; one of them returns it.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "embedding/table.h"
#include "server/call_memory.h"
#include "server/job_spec.h"
#include "server/lent_rows.h"
#include "server/metrics.h"
#include "server/push_accumulator.h"
#include "server/request_check.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// Thread-safe. Errors name job or table, id and step.
class Loans {
 public:
  // Both outlive it.
  Loans(const JobSpec* spec, CallMemory* memory, const ServerMetrics& metrics);
  ~Loans();

  // Positions of the keys, ascending, whose rows are lent and here as they were before `step` steps; at most `most`.
  std::vector<uint32_t> Older(uint32_t table, std::span<const Key> keys, uint64_t step, size_t most) const;
  absl::Status OlderError(uint32_t table, Key key, uint64_t step) const;

  // Notes rows as lent as of `step` steps, but for those at the positions `except`. ResourceExhausted: none is noted.
  absl::Status Lend(uint32_t table, std::span<const Key> keys, std::span<const uint32_t> except, uint64_t step);

  // That all records of a push are of rows that are lent, and no gradient is. InvalidArgument.
  absl::Status CheckPush(const v1::PushRequest& request) const;
  // That no row of a step's gradients is lent when they are to be applied: one may have been, to another worker, after
  // the push had come. FailedPrecondition.
  absl::Status CheckApplied(std::span<const PushPart> parts, uint64_t step) const;
  // Replaces rows by those returned, which are as of `version` steps. REQUIRES: CheckPush has passed; keys unique.
  absl::Status PutRecords(std::span<const PushPart> parts, std::span<const std::unique_ptr<Table>> tables,
                          uint64_t version);
  absl::Status PutRecords(std::span<const ReturnedRows> returned, std::span<const std::unique_ptr<Table>> tables,
                          uint64_t version);

  // The same for a push that is no part of a step: rows as of its step, beside the readers of that. With `complete` no
  // row is older than that step any more, whatever has been noted of it.
  absl::Status WriteBack(const v1::PushRequest& request, const PushBytes& bytes_of,
                         std::span<const std::unique_ptr<Table>> tables);

  // FailedPrecondition, with table and number, if a row that is lent is here as it was before `step` steps.
  absl::Status CheckNoneOlder(uint64_t step) const;

 private:
  bool AllReturned(uint64_t step) const { return all_returned_.load(std::memory_order_acquire) == step; }

  const JobSpec& spec_;
  const CallMemory& memory_;
  const ServerMetrics metrics_;
  std::deque<LentRows> lent_;  // [tables]

  // A worker has said that all rows that are lent have come back as of so many steps. Release and acquire: who sees
  // it sees those rows.
  std::atomic<uint64_t> all_returned_{UINT64_MAX};
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_LOANS_H_
