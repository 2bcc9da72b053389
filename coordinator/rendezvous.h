#ifndef SPARROW_COORDINATOR_RENDEZVOUS_H_
#define SPARROW_COORDINATOR_RENDEZVOUS_H_

// The board on which the workers of a job leave each other their addresses. It knows nothing of jobs but their ids.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

// Limits, so that no worker can exhaust the coordinator.
inline constexpr size_t kRendezvousKeyBytesMax = 1024;
inline constexpr size_t kRendezvousValueBytesMax = 1 << 20;
inline constexpr size_t kRendezvousEntriesMax = 65'536;           // A job.
inline constexpr size_t kRendezvousBytesMax = size_t{256} << 20;  // A job.
inline constexpr size_t kRendezvousReplyBytesMax = size_t{48} << 20;
inline constexpr size_t kRendezvousWaitsMax = 65'536;  // In all.

// Not thread-safe.
class RendezvousBoard {
 public:
  using Done = std::function<void(absl::StatusOr<v1::GetRendezvousResponse>)>;
  // What a call wants said to somebody who waited: the owner calls it when its lock is released.
  using Ready = std::vector<std::function<void()>>;

  // Writes a value; an old one under the key is replaced. InvalidArgument and ResourceExhausted name the limit.
  absl::Status Put(const v1::PutRendezvousRequest& request, Ready* ready);

  // Answers once all keys are there; DeadlineExceeded, naming the missing ones, at now + timeout_ms (see Expire).
  void Get(const v1::GetRendezvousRequest& request, absl::Time now, Done done, Ready* ready);

  void Expire(absl::Time now, Ready* ready);
  // Forgets the job's entries and answers its waits with `why`.
  void Close(const std::string& job_id, const absl::Status& why, Ready* ready);
  void CloseAll(const absl::Status& why, Ready* ready);

  size_t entries() const { return entries_; }

 private:
  struct Job {
    std::map<std::string, std::string> values;
    size_t bytes = 0;
  };
  struct Wait {
    v1::GetRendezvousRequest request;
    absl::Time deadline;
    Done done;
  };

  // The values if all are there, or else NotFound with the names of the missing ones.
  absl::StatusOr<v1::GetRendezvousResponse> Look(const v1::GetRendezvousRequest& request) const;

  std::map<std::string, Job> jobs_;
  std::list<Wait> waits_;
  size_t entries_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_RENDEZVOUS_H_
