#ifndef SPARROW_COORDINATOR_COORDINATOR_H_
#define SPARROW_COORDINATOR_COORDINATOR_H_

// The control-plane daemon: membership by lease, the job queue, ranks and rendezvous, progress.

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/metrics.h"

namespace sparrow {

struct CoordinatorOptions {
  std::string listen = "0.0.0.0:7070";  // HOST:PORT; port 0 picks one. Empty: no socket (a cluster in one process).
  std::string state = "sparrow-state";  // Directory of the RocksDB database with the jobs. Empty: kept in memory only.
  std::string metrics;                  // HOST:PORT of /metrics; empty: not served.
  absl::Duration lease = absl::Seconds(10);  // A member unheard of for this long is gone.
  absl::Duration heartbeat = absl::Milliseconds(500);
  const Clock* clock = Clock::Real();
};

// Thread-safe.
class Coordinator {
 public:
  virtual ~Coordinator() = default;  // Stop().

  // Unavailable if the address cannot be bound or the state is in use; the message names it. InvalidArgument if a lease
  // is not at least two heartbeats long. `metrics` outlives the coordinator; it is served at `options.metrics`.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(const CoordinatorOptions& options, Metrics* metrics);

  virtual const std::string& address() const = 0;          // As bound.
  virtual const std::string& metrics_address() const = 0;  // As bound, or empty.
  // Needs no socket. Shared with gRPC's server. After Stop its calls fail with Unavailable.
  // REQUIRES: no call on it after the coordinator is destroyed (gRPC 1.51 would crash).
  virtual std::shared_ptr<grpc::Channel> InProcessChannel() = 0;
  virtual void Stop() = 0;  // Seconds at most. Idempotent.
};

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_COORDINATOR_H_
