#ifndef SPARROW_BENCH_SPARROW_BENCH_PLANE_H_
#define SPARROW_BENCH_SPARROW_BENCH_PLANE_H_

// What pull and push are measured on: servers whose table is filled, and workers' clients of them, in one process.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/options.h"
#include "base/rpc.h"
#include "bench/sparrow_bench/report.h"
#include "server/shard.h"
#include "tests/support/temporary_directory.h"
#include "worker/ps_client.h"

namespace sparrow::bench {

// One measurement.
struct Setup {
  std::string name = "";
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
  Setup setup;
  std::string json;
  int64_t milliseconds = 2000;  // Of each measurement and of each bound.
  bool smoke = false;
};

// Parses a subcommand's flags into `flags`. An exit status if it ends now.
std::optional<int> ParseFlags(const std::string& command, const std::string& summary,
                              const std::vector<std::string>& arguments, Flags* flags);

// Measures `flags->setup` alone if a flag says so, else each of `table`; prints and writes the report. Returns the
// exit status.
int RunTable(const std::vector<std::string>& arguments, Flags flags, const std::vector<Setup>& table,
             const std::function<Measurement(const Setup&, const Flags&)>& measure);

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

// What a batch sends: the calls, and the bytes of each.
struct CallBytes {
  uint64_t calls = 0;
  uint64_t request_bytes = 0;
  uint64_t answer_bytes = 0;
};
// `times` of calls of setup.keys each, beside the bound: an echo of the same bytes, or in process a prefetched gather.
Measurement Summarise(const Setup& setup, const Flags& flags, const Plane& plane, Times times, uint64_t checksum,
                      const CallBytes& bytes);

// Rows a second if nothing is done but to send the same bytes in as many calls over the same gRPC path: requests of
// `request_bytes` are answered with `answer_bytes` from memory, and are given back as gRPC received them.
double EchoRowsPerSecond(const Setup& setup, int64_t milliseconds, uint64_t calls, uint64_t request_bytes,
                         uint64_t answer_bytes);

// Rows a second if the plane's keys' rows are copied out of one array on huge pages by their number, with prefetches,
// without index or lock, by as many threads.
double GatherRowsPerSecond(const Setup& setup, int64_t milliseconds, const Plane& plane);

RowType WireType(const std::string& wire);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_PLANE_H_
