#ifndef SPARROW_SERVER_SHARD_H_
#define SPARROW_SERVER_SHARD_H_

// One parameter-server shard: the tables of the jobs on this server, and where a push is applied. Knows no gRPC:
// server/service.cc puts it on the wire, and a worker in the same process calls it directly. Every request is validated
// whole before a row is touched.
//
// BSP: a Pull of step t waits until t steps have been applied. A step is applied when all parts of all workers' pushes
// for it are in: in rank order, gradients of equal keys are summed over workers, divided by the total number of
// samples, and given to the optimizer once.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/metrics.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

struct ShardOptions {
  std::string data;  // Directory of the cold tier.
  std::string checkpoint_root;
  uint64_t memory_bytes = 0;
};

// Thread-safe.
class Shard {
 public:
  using Done = std::function<void(absl::Status)>;

  // Several jobs and epochs may be open; each request names its own. `metrics` outlives the shard.
  static absl::StatusOr<std::unique_ptr<Shard>> Create(const ShardOptions& options, Metrics* metrics);
  virtual ~Shard() = default;

  virtual absl::Status OpenJob(const v1::OpenJobRequest& request, v1::OpenJobResponse* response) = 0;
  // Calls done exactly once: at once, or later on the thread that applies the awaited step. request and response live
  // until then. The returned id can be given to CancelPull.
  virtual uint64_t Pull(const v1::PullRequest* request, v1::PullResponse* response, Done done) = 0;
  // Ends a waiting Pull with Cancelled; nothing if it is done already.
  virtual void CancelPull(uint64_t id) = 0;
  virtual absl::Status Push(const v1::PushRequest& request, v1::PushResponse* response) = 0;
  virtual absl::Status SaveTables(const v1::SaveTablesRequest& request, v1::SaveTablesResponse* response) = 0;
  virtual absl::Status CloseJob(const v1::CloseJobRequest& request, v1::CloseJobResponse* response) = 0;

  // Drops every job that is not in the list, ending its waiting pulls with Aborted.
  virtual void KeepOnly(const std::vector<std::string>& live_job_ids) = 0;
  // Ends every waiting pull, and every later call, with Unavailable.
  virtual void Shutdown() = 0;

  struct Usage {
    uint64_t rows = 0;
    uint64_t memory_bytes = 0;
  };
  virtual Usage GetUsage() const = 0;
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_SHARD_H_
