#ifndef SPARROW_WORKER_WORKER_H_
#define SPARROW_WORKER_WORKER_H_

// The worker daemon: joins the coordinator, and runs the tasks that it is given, one after the other.

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metrics.h"
#include "worker/ps_transport.h"

namespace sparrow {

struct WorkerOptions {
  // Behaviour.
  std::string coordinator;      // HOST:PORT
  std::string device = "cpu";   // "cpu" or "cuda:N".
  std::string data_root = ".";  // Input files lie under it.
  std::string checkpoint_root =
      "checkpoints";      // Checkpoints lie under it; the same shared directory for all members of a cluster.
  std::string host;       // Address of this machine for other workers. Empty: the one that reaches the coordinator.
  std::string metrics;    // HOST:PORT of /metrics; empty: not served.
  std::string plan_file;  // Where the fastest matrix products on the GPU are noted for the next start; empty: nowhere.
  absl::Duration connect_timeout = absl::Seconds(10);

  // Performance.
  int64_t parse_threads = 0;  // That turn input into batches; 0: DefaultParseThreads.

  // For a cluster in one process: used instead of an own channel and of gRPC to the servers.
  std::shared_ptr<grpc::Channel> coordinator_channel;  // Shared by the members of the process and its owner.
  PsTransportFactory transport_factory;
};

// Half of this machine's cores, for each of the workers on it, but no more than 8, which parse more than a GPU trains
// on.
int DefaultParseThreads(int workers);

// Thread-safe.
class Worker {
 public:
  virtual ~Worker() = default;  // Stop().

  // Joins the coordinator. Unavailable if none answers within connect_timeout. Before that, data_root must be a
  // directory, and checkpoint_root one or able to become one; the error names the flag and the path. `metrics` outlives
  // the worker.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const WorkerOptions& options, Metrics* metrics);

  // Stops the running task (its job fails or is given up, and says so), leaves the coordinator, joins all threads.
  // Seconds at most. Idempotent.
  virtual void Stop() = 0;

  virtual std::string member_id() const = 0;               // "worker-3"; changes when a lost lease is renewed.
  virtual const std::string& coordinator() const = 0;      // For messages.
  virtual const std::string& metrics_address() const = 0;  // As bound, or empty.

  // Waits until the worker has ended by itself: its lease was lost and the coordinator stays away (an error that says
  // so), or Stop (OK).
  virtual absl::Status WaitUntilStopped() = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_WORKER_H_
