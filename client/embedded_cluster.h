#ifndef SPARROW_CLIENT_EMBEDDED_CLUSTER_H_
#define SPARROW_CLIENT_EMBEDDED_CLUSTER_H_

// A whole cluster in this process, of the same parts as the daemons: a coordinator (called through gRPC's in-process
// channel), servers (called directly), and workers. `sparrowctl run` trains on it; tests too.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/link.h"

namespace sparrow {

struct EmbeddedClusterOptions {
  uint32_t servers = 1;
  uint32_t workers = 1;
  std::string data_root = ".";
  std::string checkpoint_root = "checkpoints";
  std::string scratch;  // Directory of the servers' cold tiers. Empty: a new one under the system's temporary
                        // directory, removed at the end.
  uint64_t memory_bytes = uint64_t{4} << 30;  // Of each server.
  uint64_t disk_bytes = 0;                    // Of each server; 0: no limit.
  std::string metrics;   // HOST:PORT at which the metrics of all parts are served together; empty: not served.
  bool sockets = false;  // true: the data plane goes over loopback TCP, as between daemons.
};

// Thread-safe.
class EmbeddedCluster {
 public:
  virtual ~EmbeddedCluster() = default;  // Stops workers, servers, coordinator, in this order.

  static absl::StatusOr<std::unique_ptr<EmbeddedCluster>> Start(const EmbeddedClusterOptions& options);

  virtual CoordinatorLink* link() = 0;
  virtual std::string metrics_address() const = 0;  // As bound, or empty.
};

}  // namespace sparrow

#endif  // SPARROW_CLIENT_EMBEDDED_CLUSTER_H_
