#ifndef SPARROW_SERVER_SHARD_H_
#define SPARROW_SERVER_SHARD_H_

// One parameter-server shard: the tables of the jobs on this server, and where a push is applied. Knows no gRPC:
// server/service.cc puts it on the wire, and a worker in the same process calls it directly. Every request is validated
// whole before a row is touched.
//
// BSP: a Pull of step t waits until t steps have been applied. A step is applied when all parts of all workers' pushes
// for it are in: in rank order, gradients of equal keys are summed over workers, divided by the total number of
// samples, and given to the optimizer once. A lone worker's parts need no sum and no other's samples: each is applied
// as it comes, and nobody reads rows while a step is applied in part.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/metrics.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

class CallMemory;

// The least --memory: with less there is hardly room for an index.
inline constexpr uint64_t kMemoryBytesMin = uint64_t{1} << 20;

struct ShardOptions {
  std::string data;  // Directory of the cold tier.
  std::string checkpoint_root;
  uint64_t memory_bytes = 0;  // For the rows of all jobs together, in tables and in RocksDB, and for calls.
  uint64_t disk_bytes = 0;    // For the rows in `data`; 0: no limit.
  uint64_t message_bytes_max = uint64_t{64} << 20;  // A pull whose answer would be larger is refused (base/rpc.h).
};

// Thread-safe.
class Shard {
 public:
  using Done = std::function<void(absl::Status)>;

  // Several jobs may be open, each in one epoch; each request names its own. Claims the data directory, and empties it
  // of what an earlier server left; errors name it. `metrics` outlives the shard.
  static absl::StatusOr<std::unique_ptr<Shard>> Create(const ShardOptions& options, Metrics* metrics);
  virtual ~Shard() = default;

  // Blocks while a checkpoint is restored. A newer epoch replaces the job that is open, rows and all.
  virtual absl::Status OpenJob(const v1::OpenJobRequest& request, v1::OpenJobResponse* response) = 0;
  // Calls done exactly once: at once, or later on the thread that applies the awaited step. request, response and rows
  // live until then. The returned id can be given to CancelPull. If `rows` is not empty, the rows of request->tables(i)
  // are written to rows[i] instead of the response. REQUIRES: rows is empty, or has request->tables_size() entries of n
  // * dim floats (of records: as many as n of them have bytes, over 4), and the request is for FLOAT32.
  virtual uint64_t Pull(const v1::PullRequest* request, std::span<const std::span<float>> rows,
                        v1::PullResponse* response, Done done) = 0;
  uint64_t Pull(const v1::PullRequest* request, v1::PullResponse* response, Done done) {
    return Pull(request, {}, response, std::move(done));
  }
  // Ends a waiting Pull with Cancelled; nothing if it is done already.
  virtual void CancelPull(uint64_t id) = 0;
  // Returns once the step is applied if this was its last part. request and gradients may go then. A push for a later
  // step than the one to be applied next is refused: a worker pulls, if only no keys, before it pushes. An error in
  // applying a step ends the job, and is the answer to all its later calls. If `beside` is not empty, it has the
  // gradients of each of request.tables and then the records of each of request.records, as bytes, instead of the
  // request's own. REQUIRES: those of FLOAT32 and records are aligned as floats.
  virtual absl::Status Push(const v1::PushRequest& request, std::span<const std::span<const char>> beside,
                            v1::PushResponse* response) = 0;
  absl::Status Push(const v1::PushRequest& request, v1::PushResponse* response) { return Push(request, {}, response); }
  virtual absl::Status SaveTables(const v1::SaveTablesRequest& request, v1::SaveTablesResponse* response) = 0;
  virtual absl::Status CloseJob(const v1::CloseJobRequest& request, v1::CloseJobResponse* response) = 0;

  // Drops every job that is not in the list, ending its waiting pulls with Aborted. Jobs opened since opened() gave
  // `opened_before` are kept: a list that was made before a job began does not name it.
  virtual void KeepOnly(const std::vector<std::string>& live_job_ids, uint64_t opened_before) = 0;
  virtual uint64_t opened() const = 0;  // Jobs opened so far.
  // Ends every waiting pull, and every later call, with Unavailable.
  virtual void Shutdown() = 0;

  // Of the jobs that are open.
  struct Usage {
    uint64_t rows = 0;
    uint64_t memory_bytes = 0;  // In tables, their index included.
    uint64_t evictions = 0;     // Rows moved from DRAM to the cold tier, since each job was opened.
    uint64_t cold_reads = 0;    // Rows read from the cold tier, likewise.
  };
  // Also brings the metrics of tables and of memory up to date, and gives back memory that calls have not used for a
  // while; to be called now and then. Never waits for a step or a checkpoint.
  virtual Usage GetUsage() = 0;

  // In which the messages of calls are to count. Shared with those that outlive the shard.
  virtual std::shared_ptr<CallMemory> call_memory() = 0;
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_SHARD_H_
