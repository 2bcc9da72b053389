#ifndef SPARROW_BENCH_SPARROW_BENCH_PLANE_H_
#define SPARROW_BENCH_SPARROW_BENCH_PLANE_H_

// What pull and push are measured on: servers whose table is filled, and workers' clients of them, in one process.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/rpc.h"
#include "bench/sparrow_bench/commands.h"
#include "bench/sparrow_bench/report.h"
#include "server/shard.h"
#include "tests/support/temporary_directory.h"
#include "worker/ps_client.h"

namespace sparrow::bench {

// One measurement.
struct Setup {
  std::string transport = "tcp";
  std::string wire = "fp32";
  int64_t keys = 4096;
  int64_t dim = 64;
  int64_t rows = 1'000'000;  // Of the table, over all servers.
  int64_t servers = 1;
  int64_t workers = 1;  // Threads, each with one call after the other.
  uint64_t chunk = 0;   // Bytes of one message; 0: as the transport likes it.
};

struct Flags {
  Setup setup;  // Where a flag chooses one.
  std::string json;
  int64_t milliseconds = 2000;  // Of each measurement and of each bound.
  bool smoke = false;
};

// A subcommand that measures one direction of the plane.
struct Direction {
  std::string command;  // "pull": so its measurements are called, too; in process, "pull_in_process".
  std::string summary;
  std::vector<Setup> table;                             // What is measured if no flag chooses one measurement.
  absl::Status (*check)(const Setup& setup) = nullptr;  // Beside what holds for both directions. Null: nothing.
  Measurement (*measure)(const Setup& setup, const Flags& flags);
};

// Parses the flags, measures, prints and writes the report. Returns the exit status.
int RunDirection(const Direction& direction, const Arguments& arguments);

// Servers, and one client for each worker thread. Keys are 0 to rows-1.
class Plane {
 public:
  explicit Plane(const Setup& setup);
  ~Plane();

  PsClient* client(size_t worker) { return clients_[worker].get(); }
  // Different sets of keys, used in turn: enough to have most rows of the table, or more than caches hold.
  size_t batches() const { return partitions_.size(); }
  // Unique keys, uniform over the table.
  const KeyPartition& partition(size_t batch) const { return partitions_[batch % partitions_.size()]; }

 private:
  struct Listening {
    std::unique_ptr<Shard> shard;
    std::unique_ptr<grpc::Service> service;
    ListeningServer grpc;
  };

  void Fill(const Setup& setup);

  TemporaryDirectory directory_;
  Metrics metrics_;
  std::vector<Listening> servers_;
  std::vector<std::unique_ptr<PsClient>> clients_;
  std::vector<KeyPartition> partitions_;
};

// Calls body(worker, i) with i = 0, 1, ... on each worker's thread for so long, and gives the seconds of each call and
// of all of them together. The first calls, which are not counted, warm up.
struct Times {
  std::vector<double> each;
  double all = 0;
};
Times Repeat(int64_t workers, int64_t milliseconds, const std::function<void(size_t worker, size_t i)>& body);

// Of the rows of `keys`: the same in any order of servers.
uint64_t Checksum(std::span<const Key> keys, std::span<const float> rows /*[keys, dim]*/, uint32_t dim);

// What a batch sends: in how many calls, and what they carry for each row.
struct BatchBytes {
  uint64_t calls = 0;
  uint64_t request_row_bytes = 0;
  uint64_t answer_row_bytes = 0;
};
// `times` of batches of setup.keys each, beside the bound: an echo of the same bytes, or in process a prefetched
// gather. The name is left to RunDirection.
Measurement Summarise(const Setup& setup, const Flags& flags, const Plane& plane, const Times& times, uint64_t checksum,
                      const BatchBytes& bytes);

// The same in bytes of one call.
struct CallBytes {
  uint64_t calls = 0;  // Of a batch.
  uint64_t request_bytes = 0;
  uint64_t answer_bytes = 0;
};
// Rows a second if nothing is done but to send the same bytes in as many calls over the same gRPC path: requests of
// `request_bytes` are answered with `answer_bytes` from memory, and are given back as gRPC received them.
double EchoRowsPerSecond(const Setup& setup, int64_t milliseconds, const CallBytes& bytes);

// Rows a second if the plane's keys' rows are copied out of one array on huge pages by their number, with prefetches,
// without index or lock. Each worker does it alone, and with as many threads as tables use for so many rows: what is
// faster counts.
double GatherRowsPerSecond(const Setup& setup, int64_t milliseconds, const Plane& plane);

RowType WireType(const std::string& wire);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_PLANE_H_
