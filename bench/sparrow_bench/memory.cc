#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/metrics.h"
#include "base/rpc.h"
#include "base/status_macros.h"
#include "bench/sparrow_bench/commands.h"
#include "bench/sparrow_bench/report.h"
#include "bench/support/cold_reads.h"
#include "bench/support/resident.h"
#include "embedding/table_config.h"
#include "server/service.h"
#include "server/shard.h"
#include "tests/support/temporary_directory.h"
#include "worker/ps_client.h"

namespace sparrow::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr uint32_t kDim = 64;

struct MemoryFlags {
  uint64_t memory = uint64_t{1} << 30;
  int64_t workers = 2;
  int64_t keys = 0;  // 0: kKeys, one after the other.
  int64_t seconds = 60;
  std::string json;
  bool smoke = false;
};
// Of one worker's step: an ordinary batch, and messages of 3 and of 50 MB.
constexpr int64_t kKeys[] = {4096, 50'000, 200'000};

// A server in a process of its own, made by fork: what it holds is its own.
class ForkedServer {
 public:
  // REQUIRES: no thread yet.
  ForkedServer(const std::string& directory, uint64_t memory_bytes) {
    int address[2];
    CHECK_EQ(pipe(address), 0);
    pid_ = fork();
    CHECK_GE(pid_, 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(address[0]);
      Serve(directory, memory_bytes, address[1]);
    }
    close(address[1]);
    char buffer[256];
    for (ssize_t got; (got = read(address[0], buffer, sizeof(buffer))) > 0;) address_.append(buffer, got);
    close(address[0]);
    CHECK(!address_.empty()) << "the server did not start";
  }
  ~ForkedServer() {
    kill(pid_, SIGKILL);  // Its rows are nobody's, and its directory goes with ours.
    waitpid(pid_, nullptr, 0);
  }

  const std::string& address() const { return address_; }
  uint64_t ResidentBytesNow() const { return ResidentBytes(std::to_string(pid_)); }

 private:
  // As server/server.cc does, without a coordinator.
  [[noreturn]] static void Serve(const std::string& directory, uint64_t memory_bytes, int address) {
    Metrics metrics;
    auto shard = Shard::Create(
        {.data = directory + "/data", .checkpoint_root = directory, .memory_bytes = memory_bytes}, &metrics);
    CHECK(shard.ok()) << shard.status();
    const std::unique_ptr<grpc::Service> service = MakeParameterServerService(shard->get());
    auto grpc = StartGrpcServer("127.0.0.1:0", {service.get()}, Traffic::kRows);
    CHECK(grpc.ok()) << grpc.status();
    CHECK_EQ(write(address, grpc->address.data(), grpc->address.size()), static_cast<ssize_t>(grpc->address.size()));
    close(address);
    for (;;) {
      (*shard)->GetUsage();  // With each heartbeat.
      poll(nullptr, 0, 500);
    }
  }

  pid_t pid_ = -1;
  std::string address_;
};

// Keys of one step of one worker: half by Zipf's law, half uniform, so that most of them are cold.
std::vector<Key> Batch(int64_t n, uint64_t rows, ZipfKeys* zipf, std::mt19937_64* random) {
  std::vector<Key> keys = zipf->Batch(static_cast<size_t>(n / 2));
  while (keys.size() < static_cast<size_t>(n)) keys.push_back(ZipfKeys::KeyOf((*random)() % rows));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

struct Phase {
  int64_t keys = 0;
  uint64_t steps = 0;
  double rows_per_second = 0;  // Pulled and pushed.
  uint64_t resident_bytes = 0;
};

class Workers {
 public:
  Workers(const std::string& address, uint64_t rows, int64_t workers) : rows_(rows) {
    v1::TableConfig table;
    table.set_name("table");
    table.set_dim(kDim);
    table.mutable_hashed();
    table.mutable_optimizer()->set_learning_rate(0.01);
    table.mutable_optimizer()->mutable_rowwise_adagrad();
    const ShardAssignment shards = ShardAssignment::RowWise(1);
    for (int64_t w = 0; w < workers; ++w) {
      PsClientOptions options;
      options.context.set_job_id("bench");
      options.context.set_epoch(1);
      options.context.set_worker(static_cast<uint32_t>(w));
      options.context.set_fingerprint(ConfigFingerprint(std::span<const v1::TableConfig>(&table, 1), 1, shards));
      options.tables = {{.dim = kDim}};
      auto transport = GrpcTransportFactory(absl::Seconds(10))(address);
      CHECK(transport.ok()) << transport.status();
      std::vector<PsServer> ends;
      ends.push_back({address, *std::move(transport)});
      Worker& worker = workers_.emplace_back();
      worker.client = std::make_unique<PsClient>(options, shards, std::move(ends));
      worker.zipf = std::make_unique<ZipfKeys>(rows, 0, 100 + w);
      worker.random.seed(static_cast<uint64_t>(w));
    }
    v1::OpenJobRequest open;
    open.set_workers(static_cast<uint32_t>(workers));
    open.set_seed(1);
    *open.add_tables() = table;
    const auto opened = workers_[0].client->OpenJob(open);
    CHECK(opened.ok()) << opened.status();
  }

  // Steps of all workers for so long, while `resident` is asked.
  template <typename Resident>
  Phase Train(int64_t keys, double seconds, Resident resident) {
    Phase phase = {.keys = keys};
    const auto start = SteadyClock::now();
    std::atomic<uint64_t> end{std::numeric_limits<uint64_t>::max()};  // The first step that is not made.
    std::atomic<uint64_t> rows{0};
    std::atomic<size_t> running{workers_.size()};
    const uint64_t first = step_;
    std::vector<std::thread> threads;
    for (size_t w = 0; w < workers_.size(); ++w) {
      threads.emplace_back([&, w] {
        // The first worker ends the phase while the others are in this step or wait for the next one's rows.
        for (uint64_t step = first; step < end.load(); ++step) {
          const bool is_over = std::chrono::duration<double>(SteadyClock::now() - start).count() > seconds;
          if (w == 0 && is_over && end.load() > step + 2) end.store(step + 2);
          rows += Step(&workers_[w], step, keys);
        }
        --running;
      });
    }
    while (running > 0) {
      phase.resident_bytes = std::max(phase.resident_bytes, resident());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    for (std::thread& thread : threads) thread.join();
    step_ = end.load();
    phase.steps = step_ - first;
    phase.rows_per_second =
        static_cast<double>(rows) / std::chrono::duration<double>(SteadyClock::now() - start).count();
    return phase;
  }

 private:
  struct Worker {
    std::unique_ptr<PsClient> client;
    std::unique_ptr<ZipfKeys> zipf;
    std::mt19937_64 random;
    std::vector<float> floats;
  };

  // Returns the rows pulled and pushed.
  uint64_t Step(Worker* worker, uint64_t step, int64_t count) const {
    const std::vector<Key> keys = Batch(count, rows_, worker->zipf.get(), &worker->random);
    const std::vector<std::span<const Key>> views = {keys};
    KeyPartition partition;
    worker->client->Partition(views, /*before=*/nullptr, &partition);
    worker->floats.resize(keys.size() * kDim);
    const std::vector<std::span<float>> rows = {worker->floats};
    PsPull pull(worker->client.get());
    pull.Start({.step = step, .create = true}, &partition, rows);
    absl::Status status = pull.Finish();
    CHECK(status.ok()) << status;
    const std::vector<std::span<const float>> gradients = {worker->floats};
    PsPush push(worker->client.get());
    push.Start({.step = step, .samples = keys.size()}, partition, gradients);
    status = push.Finish();
    CHECK(status.ok()) << status;
    return 2 * keys.size();
  }

  const uint64_t rows_;
  std::vector<Worker> workers_;
  uint64_t step_ = 0;
};

absl::Status Measure(const MemoryFlags& flags) {
  const TemporaryDirectory directory;
  const ForkedServer server(directory.path(), flags.memory);  // First: no thread yet.
  const uint64_t rows = 10 * flags.memory / ColdTableSpec().Layout().slot_bytes();
  Workers workers(server.address(), rows, flags.workers);
  const auto resident = [&] { return server.ResidentBytesNow(); };
  std::vector<int64_t> sizes(std::begin(kKeys), std::end(kKeys));
  if (flags.keys > 0) sizes = {flags.keys};
  if (flags.smoke) sizes = {4096};

  // Until memory is full, which is no step of the measurement, if there is time for it.
  const double seconds = flags.smoke ? 1 : static_cast<double>(flags.seconds) / static_cast<double>(sizes.size() + 1);
  workers.Train(flags.smoke ? 4096 : 20'000, seconds, resident);
  const uint64_t allowed = ResidentBytesMax(flags.memory);
  std::vector<Fields> report;
  uint64_t most = 0;
  absl::PrintF("%-8s %10s %8s %8s %8s %12s %12s %12s %7s\n", "name", "budget MB", "workers", "keys", "steps", "rows/s",
               "resident MB", "allowed MB", "share");
  for (const int64_t keys : sizes) {
    const Phase phase = workers.Train(keys, seconds, resident);
    most = std::max(most, phase.resident_bytes);
    const double share = static_cast<double>(phase.resident_bytes) / static_cast<double>(flags.memory);
    absl::PrintF("%-8s %10.1f %8d %8d %8d %12.0f %12.1f %12.1f %6.1f%%\n", "memory",
                 static_cast<double>(flags.memory) / 1e6, flags.workers, keys, phase.steps, phase.rows_per_second,
                 static_cast<double>(phase.resident_bytes) / 1e6, static_cast<double>(allowed) / 1e6, 100 * share);
    std::fflush(stdout);
    report.push_back({{"name", "memory"},
                      {"budget_bytes", flags.memory},
                      {"workers", static_cast<uint64_t>(flags.workers)},
                      {"keys", static_cast<uint64_t>(keys)},
                      {"steps", phase.steps},
                      {"rows_per_second", phase.rows_per_second},
                      {"resident_bytes", phase.resident_bytes},
                      {"bound", "budget + 10 %"},
                      {"bound_resident_bytes", allowed}});
  }
  RETURN_IF_ERROR(WriteJson(report, flags.json));
  if (most <= allowed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the server held ", most, " bytes; with --memory ",
                                                   FormatBytes(flags.memory), " at most ", allowed, " are allowed"));
}

}  // namespace

int MemoryCommand(const Arguments& arguments) {
  MemoryFlags flags;
  const std::vector<Option> options = {
      {"memory", BytesFlag{&flags.memory, kMemoryBytesMin}, "The server's --memory."},
      {"workers", IntFlag{&flags.workers, 1, 64}, "Workers of the job, each on a thread."},
      {"keys", IntFlag{&flags.keys, 0, 1 << 20}, "Keys of one worker's step; 0: 4096, then 50000, then 200000."},
      {"seconds", IntFlag{&flags.seconds, 1, 1 << 20}, "Of it all; a part of them fills the memory first."},
      {"json", &flags.json, "File for the report as JSON."},
      {"smoke", &flags.smoke, "A small server for two seconds."},
  };
  const Usage usage = {
      .program = "sparrow-bench memory",
      .positional = "",
      .summary =
          "Does a server stay within its --memory and 10 % more? It is a process of its own; the workers of one job\n"
          "train a table of ten times its memory over TCP, with keys of which most are cold. Its resident memory is\n"
          "looked at every 10 ms: program, tables, RocksDB, messages and what waits. The exit status is 1 if it was\n"
          "more than allowed, which below 1 GiB is 96 MiB more.",
      .examples = "  sparrow-bench memory\n  sparrow-bench memory --workers 4 --keys 100000 --seconds 600\n"};
  if (const std::optional<int> status = ParseCommand(usage, options, arguments)) return *status;
  if (flags.smoke) flags.memory = uint64_t{32} << 20;
  const absl::Status status = Measure(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "sparrow-bench memory: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace sparrow::bench
