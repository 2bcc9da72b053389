#ifndef SPARROW_SERVER_SERVER_H_
#define SPARROW_SERVER_SERVER_H_

// The parameter-server daemon: listens, joins the coordinator, serves one Shard.

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metrics.h"

namespace sparrow {

class Shard;

struct ServerOptions {
  // Behaviour.
  std::string coordinator;  // HOST:PORT
  std::string listen =
      "0.0.0.0:0";        // HOST:PORT or unix:PATH; port 0 picks one. Empty: no socket (a cluster in one process).
  std::string advertise;  // The address that workers use. Empty: the one that reaches the coordinator, with the port of
                          // `listen`.
  std::string data = "sparrow-data";  // Directory of the cold tier; its contents do not outlive the server.
  std::string checkpoint_root =
      "checkpoints";    // Checkpoints lie under it; the same shared directory for all members of a cluster.
  std::string metrics;  // HOST:PORT of /metrics; empty: not served.
  absl::Duration connect_timeout = absl::Seconds(10);

  // Performance.
  uint64_t memory_bytes = uint64_t{4} << 30;  // For rows and their index; an eighth of it, 1 GiB at most, is RocksDB's.
  uint64_t disk_bytes = 0;                    // For rows in `data`; 0: no limit.

  std::shared_ptr<grpc::Channel>
      coordinator_channel;  // For a cluster in one process. Shared by the members of the process and its owner.
};

// Thread-safe.
class Server {
 public:
  virtual ~Server() = default;  // Stop().

  // Unavailable if the address cannot be bound or no coordinator answers; the message names it. checkpoint_root is a
  // directory or able to become one, else it is refused. `metrics` outlives the
  // server.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, Metrics* metrics);

  virtual const std::string& address() const = 0;          // As advertised.
  virtual const std::string& listen_address() const = 0;   // As bound; empty without a socket.
  virtual const std::string& metrics_address() const = 0;  // As bound; empty: not served.
  virtual Shard* shard() = 0;                              // For direct calls within the process.

  // Refuses new calls, ends waiting ones, leaves the coordinator. Seconds at most. Idempotent.
  virtual void Stop() = 0;

  // Waits until Stop (OK), or until the coordinator has been away for good (an error that says so).
  virtual absl::Status WaitUntilStopped() = 0;
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_SERVER_H_
