#ifndef SPARROW_COORDINATOR_STATE_STORE_H_
#define SPARROW_COORDINATOR_STATE_STORE_H_

// What the coordinator must not forget: a small ordered key-value store on disk.
//
// Layout, format 1:
//   format                 "1"
//   next/NAME              decimal: the next number of that kind to give out (job, server, worker, shard_map)
//   job/NUMBER/request     v1.SubmitRequest; NUMBER has 20 digits, so that keys sort by it
//   job/NUMBER/status      v1.JobStatus with its loss curve

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sparrow {

// Thread-safe.
class StateStore {
 public:
  // Empty value: the key is deleted.
  using Writes = std::vector<std::pair<std::string, std::string>>;

  virtual ~StateStore() = default;

  // Opens or creates the database in `directory`. Unavailable if another process has it open, FailedPrecondition for
  // another format; both name the directory. An empty directory: a store that keeps nothing.
  static absl::StatusOr<std::unique_ptr<StateStore>> Open(const std::string& directory);

  // All or none of the writes; on disk once this returns OK.
  virtual absl::Status Write(const Writes& writes) = 0;

  // Calls `each` for every key that starts with `prefix`, in order, until it returns an error.
  virtual absl::Status ForEach(
      const std::string& prefix,
      const std::function<absl::Status(absl::string_view key, absl::string_view value)>& each) const = 0;
};

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_STATE_STORE_H_
