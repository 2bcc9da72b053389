#ifndef SPARROW_CLIENT_EMBEDDED_CLUSTER_H_
#define SPARROW_CLIENT_EMBEDDED_CLUSTER_H_

// A whole cluster in this process, of the same parts as the daemons: a coordinator (called through gRPC's in-process
// channel), servers (called directly), and workers. `sparrowctl run` trains on it; tests too.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metrics.h"
#include "coordinator/link.h"
#include "server/shard.h"
#include "worker/ps_transport.h"

namespace sparrow {

struct EmbeddedClusterOptions {
  uint32_t servers = 1;
  uint32_t workers = 1;
  std::string device = "cpu";  // Of all workers: "cpu" or "cuda:N"; or several, with commas, which they take in turn.
  std::string plan_file;       // As in WorkerOptions.
  int64_t parse_threads = 0;   // Of each worker; 0: DefaultParseThreads.
  std::string data_root = ".";
  std::string checkpoint_root = "checkpoints";
  std::string scratch;  // Directory of the servers' cold tiers. Empty: a new one under the system's temporary
                        // directory, removed at the end.
  uint64_t memory_bytes = uint64_t{4} << 30;  // Of each server.
  uint64_t disk_bytes = 0;                    // Of each server; 0: no limit.
  std::string metrics;   // HOST:PORT at which the metrics of all parts are served together; empty: not served.
  bool sockets = false;  // true: the data plane goes over loopback TCP, as between daemons.
  // Put around each worker's transport to a server, by tests and measurements; null: nothing is.
  std::function<std::unique_ptr<PsTransport>(std::unique_ptr<PsTransport>)> wrap_transport;
};

// Thread-safe.
class EmbeddedCluster {
 public:
  virtual ~EmbeddedCluster() = default;  // Stops workers, servers, coordinator, in this order.

  static absl::StatusOr<std::unique_ptr<EmbeddedCluster>> Start(const EmbeddedClusterOptions& options);

  virtual CoordinatorLink* link() = 0;
  virtual std::string metrics_address() const = 0;  // As bound, or empty.
  virtual Metrics* metrics() = 0;                   // Of all parts together.
  virtual Shard* shard(uint32_t server) = 0;        // REQUIRES: server < options.servers.
};

}  // namespace sparrow

#endif  // SPARROW_CLIENT_EMBEDDED_CLUSTER_H_
