#ifndef SPARROW_WORKER_RENDEZVOUS_H_
#define SPARROW_WORKER_RENDEZVOUS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/link.h"
#include "dense/collective.h"
#include "sparrow/v1/coordinator.pb.h"
#include "worker/stop_signal.h"

namespace sparrow {

// The coordinator's board for one job and epoch. Waiting ends with Cancelled when the task is stopped.
class CoordinatorBoard final : public RendezvousStore {
 public:
  // Both outlive it.
  CoordinatorBoard(CoordinatorLink* link, const v1::Task& task, StopSignal* stop);

  absl::Status Put(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override;

 private:
  CoordinatorLink* const link_;
  const std::string job_id_;
  const uint64_t epoch_;
  Cancellation cancellation_;
  const StopSignal::Scope cancel_on_stop_;
};

// Waits until every worker of the task is ready, then makes their group. `host`: an address of this machine that the
// others can reach.
absl::StatusOr<std::unique_ptr<Collective>> MeetWorkers(const v1::Task& task, const std::string& host,
                                                        RendezvousStore* board);

}  // namespace sparrow

#endif  // SPARROW_WORKER_RENDEZVOUS_H_
