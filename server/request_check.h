#ifndef SPARROW_SERVER_REQUEST_CHECK_H_
#define SPARROW_SERVER_REQUEST_CHECK_H_

// Whole pulls and pushes, checked before a row is touched. An error says which worker, step, table and id is wrong.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/task_pool.h"
#include "server/job_spec.h"
#include "server/parallel_tables.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

inline constexpr uint32_t kPartsMax = 1 << 16;
inline constexpr uint64_t kSamplesMax = uint64_t{1} << 32;  // Of one worker in one step.

// That the call is from a worker of this job, epoch and configuration. FailedPrecondition, or InvalidArgument for the
// rank.
absl::Status CheckContext(const JobSpec& spec, const v1::CallContext& context);

// Tables known and named once; keys whole, unique, of this server, within bounds; the row type known; rows that are
// lent of a job and tables that may lend; the answer, `message_bytes_max` bytes at most, encoded. InvalidArgument, or
// OutOfRange for an id outside a bounded table.
absl::Status CheckPull(const JobSpec& spec, const v1::PullRequest& request, uint64_t message_bytes_max, TaskPool* pool);

// Where the gradients and records of a push lie: in the request, or beside it. A view.
class PushBytes {
 public:
  // `beside` is empty or has an entry for each of request.tables, and then for each of request.records.
  PushBytes(const v1::PushRequest& request, std::span<const std::span<const char>> beside)
      : request_(request), beside_(beside) {}

  std::span<const char> gradients(int entry) const {
    if (!beside_.empty()) return beside_[static_cast<size_t>(entry)];
    return {request_.tables(entry).gradients().data(), request_.tables(entry).gradients().size()};
  }
  std::span<const char> records(int entry) const {
    if (!beside_.empty()) return beside_[static_cast<size_t>(request_.tables_size() + entry)];
    return {request_.records(entry).records().data(), request_.records(entry).records().size()};
  }
  bool all_floats() const {
    for (const v1::TableGradients& table : request_.tables()) {
      if (table.row_type() != v1::FLOAT32) return false;
    }
    return true;
  }

 private:
  const v1::PushRequest& request_;
  const std::span<const std::span<const char>> beside_;
};

// Rows that come back in a push, of one table. A view.
struct ReturnedRows {
  uint32_t table = 0;
  bool keep = false;
  std::span<const Key> keys;      // [n]
  std::span<const char> records;  // [n, record_bytes]
};

// The same for keys; a gradient for each, of a type that is known, and, of FLOAT32, finite and at most kGradientMax
// (embedding/optimizer.h; others are looked at once they are floats); a whole record for each, all floats finite; part,
// samples and factor sensible; in a write-back nothing but records to keep.
// `plans` become those of request.records().
absl::Status CheckPush(const JobSpec& spec, const v1::PushRequest& request, const PushBytes& bytes, TaskPool* pool,
                       PlannedTables* plans);

// Of one row in the answer to a pull.
uint64_t PulledRowBytes(const TableSpec& table, const v1::PullRequest& request);

// What a push returns, where it lies. REQUIRES: CheckPush has passed.
std::vector<ReturnedRows> RowsReturned(const v1::PushRequest& request, const PushBytes& bytes);

// The bytes that a pull's answer takes when encoded.
uint64_t PullResponseBytes(const JobSpec& spec, const v1::PullRequest& request);

// A `bytes` field as numbers. REQUIRES: its size is a multiple of sizeof(T), and it is aligned as T; the memory of a
// std::string is aligned for 8 bytes, heap or not.
template <typename T>
std::span<const T> ViewAs(std::span<const char> bytes) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % alignof(T), 0u);
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace sparrow

#endif  // SPARROW_SERVER_REQUEST_CHECK_H_
