// How fast does one shard answer one client? Fixed: 4,096 unique keys a call out of 1 M rows (smoke: 10 k) in DRAM, 64
// float32 a row, row-wise Adagrad, one client with one call in flight, client and server in this process on this
// machine's cores. Varies: pull or push (which applies the step), and the way: direct call, unix socket, loopback TCP.
// The bound: one memcpy of the bytes that a call moves, hot and cold rows alike, printed as its own line;
// share_of_bound is how much of that speed a call reaches. A push reads and writes each row besides.

#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/metrics.h"
#include "base/rpc.h"
#include "embedding/partition.h"
#include "embedding/table_config.h"
#include "server/service.h"
#include "server/shard.h"
#include "sparrow/v1/parameter_server.grpc.pb.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

constexpr size_t kKeys = 4096;
constexpr uint32_t kDim = 64;
constexpr size_t kCallBytes = kKeys * (kDim * sizeof(float) + sizeof(Key));
constexpr size_t kBatches = 64;  // Different sets of keys, used in turn.

bool Smoke() { return std::getenv("SPARROW_BENCH_SMOKE") != nullptr; }  // Set by CTest.
size_t Rows() { return Smoke() ? 10'000 : 1'000'000; }

enum Way : int64_t { kDirect, kUnix, kTcp };

// A shard with a filled table, and the ways to it. Made once: filling takes longer than measuring.
class Bench {
 public:
  static Bench& Get() {
    static Bench bench;
    return bench;
  }

  v1::PullRequest& pull(size_t i) { return pulls_[i % kBatches]; }
  v1::PushRequest& push(size_t i) { return pushes_[i % kBatches]; }
  uint64_t step = 0;

  absl::Status Pull(Way way, const v1::PullRequest& request, v1::PullResponse* response) {
    if (way == kDirect) {
      absl::Status result = absl::UnknownError("the pull waits");
      shard_->Pull(&request, response, [&result](absl::Status status) { result = std::move(status); });
      return result;
    }
    grpc::ClientContext context;
    return FromGrpcStatus(Stub(way)->Pull(&context, request, response));
  }
  absl::Status Push(Way way, const v1::PushRequest& request, v1::PushResponse* response) {
    if (way == kDirect) return shard_->Push(request, response);
    grpc::ClientContext context;
    return FromGrpcStatus(Stub(way)->Push(&context, request, response));
  }

 private:
  Bench() {
    auto shard = Shard::Create(
        {.data = directory_.File("data"), .checkpoint_root = directory_.path(), .memory_bytes = uint64_t{1} << 31},
        &metrics_);
    CHECK(shard.ok()) << shard.status();
    shard_ = *std::move(shard);
    unix_ = Serve("unix:" + directory_.File("socket"));
    tcp_ = Serve("127.0.0.1:0");
    Fill();
  }
  ~Bench() {
    shard_->Shutdown();
    unix_.server->Shutdown();
    tcp_.server->Shutdown();
  }

  struct Served {
    std::unique_ptr<grpc::Service> service;
    std::unique_ptr<grpc::Server> server;  // Ends before its service.
    std::unique_ptr<v1::ParameterServer::Stub> stub;
  };
  Served Serve(const std::string& address) {
    Served served;
    served.service = MakeParameterServerService(shard_.get());
    auto listening = StartGrpcServer(address, {served.service.get()});
    CHECK(listening.ok()) << listening.status();
    served.server = std::move(listening->server);
    served.stub = v1::ParameterServer::NewStub(MakeChannel(listening->address));
    return served;
  }
  v1::ParameterServer::Stub* Stub(Way way) { return way == kUnix ? unix_.stub.get() : tcp_.stub.get(); }

  void Fill() {
    v1::TableConfig table;
    table.set_name("table");
    table.set_dim(kDim);
    table.mutable_hashed();
    table.mutable_optimizer()->set_learning_rate(0.01);
    table.mutable_optimizer()->mutable_rowwise_adagrad();
    const ShardAssignment shards = ShardAssignment::RowWise(1);
    v1::CallContext context;
    context.set_job_id("bench");
    context.set_epoch(1);
    context.set_fingerprint(ConfigFingerprint(std::span<const v1::TableConfig>(&table, 1), 1, shards));
    v1::OpenJobRequest open;
    *open.mutable_context() = context;
    open.set_workers(1);
    open.set_seed(1);
    *open.add_tables() = table;
    for (const uint32_t owner : shards.owner()) open.mutable_shard_map()->add_owner(owner);
    v1::OpenJobResponse opened;
    absl::Status status = shard_->OpenJob(open, &opened);
    CHECK(status.ok()) << status;

    std::mt19937_64 random(1);
    const std::vector<float> gradients(kKeys * kDim, 1e-3f);
    for (size_t i = 0; i < kBatches; ++i) {
      absl::flat_hash_set<Key> seen;
      std::vector<Key> keys;
      while (keys.size() < kKeys) {
        const Key key = random() % Rows();
        if (seen.insert(key).second) keys.push_back(key);
      }
      const std::string key_bytes(AsBytes(std::span<const Key>(keys)));
      *pulls_[i].mutable_context() = context;
      pulls_[i].set_create(true);
      pulls_[i].add_tables()->set_keys(key_bytes);
      *pushes_[i].mutable_context() = context;
      pushes_[i].set_parts(1);
      pushes_[i].set_samples(kKeys);
      pushes_[i].set_learning_rate_factor(1);
      v1::TableGradients* pushed = pushes_[i].add_tables();
      pushed->set_keys(key_bytes);
      pushed->set_gradients(std::string(AsBytes(std::span<const float>(gradients))));
    }
    // All rows, in calls as large as they may be.
    for (size_t begin = 0; begin < Rows(); begin += 100'000) {
      std::vector<Key> keys;
      for (size_t key = begin; key < std::min(begin + 100'000, Rows()); ++key) keys.push_back(key);
      v1::PullRequest request = pulls_[0];
      request.mutable_tables(0)->set_keys(std::string(AsBytes(std::span<const Key>(keys))));
      v1::PullResponse response;
      status = Pull(kDirect, request, &response);
      CHECK(status.ok()) << status;
    }
  }

  TemporaryDirectory directory_;
  Metrics metrics_;
  std::unique_ptr<Shard> shard_;
  Served unix_;
  Served tcp_;
  v1::PullRequest pulls_[kBatches];
  v1::PushRequest pushes_[kBatches];
};

// Seconds (median) for one copy of a call's bytes between buffers that, like rows, are not all in the caches.
double CopySeconds() {
  static const double seconds = [] {
    const size_t copies = Smoke() ? 4 : 64;
    std::vector<char> from(copies * kCallBytes, 1), to(copies * kCallBytes, 2);
    std::vector<double> each;
    for (size_t i = 0; i < 5 * copies; ++i) {
      const size_t at = i % copies * kCallBytes;
      const absl::Time start = absl::Now();
      std::memcpy(to.data() + at, from.data() + at, kCallBytes);
      benchmark::DoNotOptimize(to.data());
      benchmark::ClobberMemory();
      each.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    }
    std::nth_element(each.begin(), each.begin() + each.size() / 2, each.end());
    return each[each.size() / 2];
  }();
  return seconds;
}

void Report(benchmark::State& state, std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto percentile = [&](double share) {
    return seconds[std::min(seconds.size() - 1, static_cast<size_t>(share * static_cast<double>(seconds.size())))];
  };
  const double p50 = percentile(0.5);
  state.counters["rows/s"] =
      benchmark::Counter(static_cast<double>(kKeys * seconds.size()), benchmark::Counter::kIsRate);
  state.counters["p50_us"] = p50 * 1e6;
  state.counters["p99_us"] = percentile(0.99) * 1e6;
  state.counters["share_of_bound"] = CopySeconds() / p50;
}

void Copy(benchmark::State& state) {
  std::vector<char> from(64 * kCallBytes, 1), to(64 * kCallBytes, 2);
  size_t i = 0;
  std::vector<double> seconds;
  for (auto _ : state) {
    const absl::Time start = absl::Now();
    std::memcpy(to.data() + i % 64 * kCallBytes, from.data() + i % 64 * kCallBytes, kCallBytes);
    benchmark::ClobberMemory();
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    ++i;
  }
  Report(state, std::move(seconds));
}

const char* NameOf(int64_t way) { return way == kDirect ? "direct" : way == kUnix ? "unix" : "tcp"; }

void Pull(benchmark::State& state) {
  Bench& bench = Bench::Get();
  const Way way = static_cast<Way>(state.range(0));
  state.SetLabel(NameOf(way));
  v1::PullResponse response;
  std::vector<double> seconds;
  size_t i = 0;
  for (auto _ : state) {
    v1::PullRequest& request = bench.pull(i++);
    request.set_step(bench.step);
    const absl::Time start = absl::Now();
    const absl::Status status = bench.Pull(way, request, &response);
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  }
  CHECK_EQ(response.tables(0).rows().size(), kKeys * kDim * sizeof(float));
  Report(state, std::move(seconds));
}

void Push(benchmark::State& state) {
  Bench& bench = Bench::Get();
  const Way way = static_cast<Way>(state.range(0));
  state.SetLabel(NameOf(way));
  v1::PushResponse response;
  std::vector<double> seconds;
  size_t i = 0;
  for (auto _ : state) {
    v1::PushRequest& request = bench.push(i++);
    request.set_step(bench.step++);
    const absl::Time start = absl::Now();
    const absl::Status status = bench.Push(way, request, &response);
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
    if (!status.ok() || response.duplicate()) return state.SkipWithError(status.ToString().c_str());
  }
  Report(state, std::move(seconds));
}

BENCHMARK(Copy)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(Pull)->Arg(kDirect)->Arg(kUnix)->Arg(kTcp)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(Push)->Arg(kDirect)->Arg(kUnix)->Arg(kTcp)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
