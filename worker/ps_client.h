#ifndef SPARROW_WORKER_PS_CLIENT_H_
#define SPARROW_WORKER_PS_CLIENT_H_

// A worker's end of the data plane: one job's rows on all parameter servers, as if they were one table store.
//
// Every call is repeated while its server is Unavailable, within a limit: pulls are reads, and a server applies each
// part of a push once, whoever repeats it. Errors name the server's number and address, and are final: the transports
// are cancelled with them, because the job is over.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "embedding/partition.h"
#include "embedding/row_type.h"
#include "sparrow/v1/parameter_server.pb.h"
#include "worker/call_set.h"
#include "worker/key_partition.h"
#include "worker/ps_transport.h"

namespace sparrow {

struct PsClientOptions {
  // Behaviour.
  v1::CallContext context;  // Goes with every call.
  std::vector<TableShape> tables;
  absl::Duration open_timeout = absl::Hours(1);     // A restore reads a checkpoint.
  absl::Duration pull_timeout = absl::Minutes(10);  // A pull waits for the other workers' step.
  absl::Duration push_timeout = absl::Minutes(10);
  absl::Duration save_timeout = absl::Hours(1);
  absl::Duration close_timeout = absl::Seconds(5);
  absl::Duration unavailable_timeout = absl::Seconds(10);  // A server that is not there for this long is given up.

  RowType pull_type = RowType::kFloat32;  // Of rows on their way here.
  RowType push_type = RowType::kFloat32;  // Of gradients on their way to the servers.

  // Performance.
  // Keys and rows in one message; at most kChunkBytesMax. 0: as the transports like it.
  uint64_t pull_chunk_bytes = 0;
  uint64_t push_chunk_bytes = 0;
};

// Leaves room under kMessageBytesMax for what a message holds besides keys and rows.
inline constexpr uint64_t kChunkBytesMax = 56 << 20;

class PsPull;
class PsPush;

// Cancel is thread-safe; the rest is for one thread, but a PsPull and a PsPush may each have one of its own.
class PsClient {
 public:
  // servers[i] is entry i of the shard map. REQUIRES: servers.size() == shards.servers();
  // pull_chunk_bytes, push_chunk_bytes <= kChunkBytesMax.
  PsClient(const PsClientOptions& options, ShardAssignment shards, std::vector<PsServer> servers);

  // Opens the job on every server. `request` holds everything but context, shard map and server, which are filled in.
  // Returns the rows that the servers hold, a table each.
  absl::StatusOr<std::vector<uint64_t>> OpenJob(const v1::OpenJobRequest& request);
  // Every server writes its rows to `directory`, as of exactly `step` steps.
  absl::StatusOr<std::vector<v1::SavedFile>> SaveTables(const std::string& directory, uint64_t step);
  absl::Status CloseJob();

  // Cuts the unique keys of a step (a span for each table) into messages; see KeyPartition::Build. Thread-safe.
  void Partition(std::span<const std::span<const Key>> keys, const KeyFilter* before, KeyPartition* partition) const;
  // The same for messages that carry whole records.
  void PartitionRecords(std::span<const std::span<const Key>> keys, const KeyFilter* before,
                        KeyPartition* partition) const;
  // No key: what servers are told in a step without rows.
  const KeyPartition& no_rows() const { return no_rows_; }

  // Ends every call in flight with Cancelled, and every later one. Thread-safe.
  void Cancel();

  const ShardAssignment& shards() const { return shards_; }
  const PsClientOptions& options() const { return options_; }

 private:
  friend class PsPull;
  friend class PsPush;

  const PsClientOptions options_;
  const std::vector<TableShape> record_shapes_;  // options_.tables, with a record for a row.
  const ShardAssignment shards_;
  std::vector<PsServer> servers_;
  KeyPartition::ChunkBytes chunk_bytes_;
  KeyPartition no_rows_;
};

// The rows of one step, on their way. Reusable; one at a time. The client outlives it.
class PsPull {
 public:
  explicit PsPull(PsClient* client);

  struct Ask {
    uint64_t step = 0;     // Rows as they are after this many steps.
    bool create = false;   // Absent rows come to be; else this is a look (evaluation).
    bool ahead = false;    // Rows that are not late may be answered before step-1 is applied (PullRequest.ahead).
    bool records = false;  // Whole records, which the servers lend (PullRequest.records).
    bool beside = false;   // Records beside the step's pull, of rows for which the step has no gradient.
  };
  // Asks for the rows; row i of table t, that of keys(t)[i], is written to rows[t][i * dim ...] as answers come. A
  // server without a key is asked for none, so that after Finish all of them have applied `step` steps and will take a
  // push of step `step`. `partition` and `rows` stay as they are until Finish. REQUIRES: rows[t].size() ==
  // keys(t).size() * dim; of records, * record_floats, and the partition is one of records.
  void Start(const Ask& ask, const KeyPartition* partition, std::span<const std::span<float>> rows /*[tables]*/);
  // Asks again for the rows that answers ahead left out, if all of those have come; else Finish does. Never waits.
  void AskForPending();
  // Whether every row is there, so that Finish would not wait.
  bool Ready() const { return asked_again_ && calls_.AllAnswered() && (first_.empty() || again_.AllAnswered()); }
  // Waits for all rows. REQUIRES: Start.
  absl::Status Finish();

  uint64_t bytes() const { return bytes_; }  // Of keys and rows in the last pull.

 private:
  using Calls = CallSet<RowPull, v1::PullResponse>;

  void SetHead(v1::PullRequest* request) const;
  // Floats that a row of the table takes in memory; bytes that it takes on its way.
  uint32_t Width(uint32_t table) const;
  uint64_t WireBytes(uint32_t table) const;
  absl::Status CheckAnswer(const Calls& calls, size_t call) const;
  void StartAgain();
  absl::Status FinishAgain();

  PsClient* const client_;
  Ask ask_;
  const KeyPartition* partition_ = nullptr;
  uint64_t bytes_ = 0;
  Calls calls_;
  // For keys that were pending:
  bool asked_again_ = false;
  std::vector<size_t> first_;                     // [again_] The call in calls_ whose keys they are.
  std::vector<std::vector<float>> pending_rows_;  // Of again_'s calls and tables, one after the other.
  Calls again_;
};

// The row gradients of one step, on their way. Reusable; one at a time. The client outlives it.
class PsPush {
 public:
  explicit PsPush(PsClient* client);

  struct Step {
    uint64_t step = 0;
    uint64_t samples = 0;  // Of this worker.
    double learning_rate_factor = 1;
  };
  // Sends gradients[t], sums over this worker's samples for keys(t), to the servers of the keys; a server without a key
  // gets an empty part. `gradients` stay as they are until Finish: float32 ones are sent from where they lie.
  // REQUIRES: gradients[t].size() == keys(t).size() * dim.
  void Start(const Step& step, const KeyPartition& partition, std::span<const std::span<const float>> gradients);
  // Returns rows that were lent instead, as they are after the step: records[t] of keys(t), sent from where they lie.
  // REQUIRES: records[t].size() == keys(t).size() * record_floats * 4, aligned as floats; a partition of records.
  void StartReturn(const Step& step, const KeyPartition& partition, std::span<const std::span<const char>> records);
  // Both in one step, of different rows.
  void StartWithReturn(const Step& step, const KeyPartition& partition,
                       std::span<const std::span<const float>> gradients, const KeyPartition& returned,
                       std::span<const std::span<const char>> records);
  // Writes rows back that stay with the worker, as they are after `step` steps, which all servers have applied.
  // REQUIRES: as StartReturn.
  void StartWriteBack(uint64_t step, const KeyPartition& partition, std::span<const std::span<const char>> records);
  // Says that every row that is lent has been written back as it is after `step` steps.
  void StartComplete(uint64_t step);
  // Waits until every server has taken its parts. REQUIRES: Start, of any kind.
  absl::Status Finish();

  // Of the last push:
  uint64_t bytes() const { return bytes_; }  // keys and gradients or records,
  uint64_t saturated() const {
    return saturated_;
  }  // gradients beyond the range of push_type, sent as its largest value.

 private:
  void StartRecords(const Step& step, bool keep, const KeyPartition& partition,
                    std::span<const std::span<const char>> records);
  // Makes request `call` part `part` of `parts` of the step, and puts a chunk's rows into it.
  void SetHead(size_t call, const Step& step, uint32_t part, uint32_t parts);
  void PutGradients(size_t call, const KeyPartition& partition, const KeyPartition::Chunk& chunk,
                    std::span<const std::span<const float>> gradients);
  void PutRecords(size_t call, const KeyPartition& partition, const KeyPartition::Chunk& chunk, bool keep,
                  std::span<const std::span<const char>> records);
  void Prepare(size_t calls, size_t pieces);
  template <typename ServerOf>
  void Send(const ServerOf& server_of);

  PsClient* const client_;
  uint64_t bytes_ = 0;
  uint64_t saturated_ = 0;
  std::vector<std::vector<char>> encoded_;  // [pieces]: gradients of another type than float32.
  CallSet<RowPush, v1::PushResponse> calls_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_PS_CLIENT_H_
