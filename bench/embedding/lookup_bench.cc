// Question: what share of the machine's random access does a table's look-up of a batch reach on one thread, and what
// does an update of the same rows cost?
// Fixed: 10 million rows (smoke: 20,000) of dim 64 in DRAM, row-wise Adagrad, batches of unique keys drawn uniformly,
// one thread. Varies: the keys a batch. Bound: the same rows, by their number, gathered from one array on huge pages
// with prefetch: no index, no locks. Batches of table and bound take turns, and the time is the thread's own, so that
// what else the machine does falls on both.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "base/random.h"
#include "embedding/pages.h"
#include "embedding/table.h"

namespace sparrow {
namespace {

constexpr uint32_t kDim = 64;
constexpr int kBatches = 64;
uint64_t Rows() { return std::getenv("SPARROW_BENCH_SMOKE") != nullptr ? 20'000 : 10'000'000; }

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The table and the plain array hold the same rows: made once for all measurements.
class Store {
 public:
  static Store& Shared() {
    static Store store;
    return store;
  }

  Table& table() { return *table_; }

  void Gather(const std::vector<Key>& keys, float* out) const {
    constexpr size_t kAhead = 16;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size()) {
        const float* const next = Row(keys[i + kAhead]);
        for (uint32_t at = 0; at < kDim; at += 16) __builtin_prefetch(next + at);
      }
      std::memcpy(out + i * kDim, Row(keys[i]), kDim * sizeof(float));
    }
  }

 private:
  Store() : plain_(Rows() * kDim * sizeof(float)), budget_(uint64_t{16} << 30) {
    CHECK(plain_.data() != nullptr) << "no memory";
    TableSpec spec;
    spec.name = "lookup";
    spec.dim = kDim;
    spec.bounded_rows = Rows();
    spec.optimizer = {.kind = SparseOptimizerKind::kRowwiseAdagrad, .learning_rate = 0.01, .eps = 1e-8};
    spec.initializer = {InitializerKind::kConstant, 0.5};
    table_ = MakeHostTable(spec, &budget_);
    constexpr uint64_t kAtOnce = 10'000;
    std::vector<Key> keys(kAtOnce);
    std::vector<float> rows(kAtOnce * kDim);
    for (Key first = 0; first < Rows(); first += kAtOnce) {
      for (uint64_t i = 0; i < kAtOnce; ++i) keys[i] = first + i;
      CHECK(table_->Pull(keys, PullMode::kCreate, rows).ok());
      std::memcpy(plain_.data() + first * kDim * sizeof(float), rows.data(), rows.size() * sizeof(float));
    }
  }

  const float* Row(Key key) const { return reinterpret_cast<const float*>(plain_.data()) + key * kDim; }

  Pages plain_;
  MemoryBudget budget_;
  std::unique_ptr<Table> table_;
};

std::vector<std::vector<Key>> MakeBatches(size_t keys) {
  std::vector<std::vector<Key>> batches(kBatches);
  uint64_t next = 0;
  for (std::vector<Key>& batch : batches) {
    std::unordered_set<Key> seen;
    while (batch.size() < keys) {
      const Key key = RandomBits(5, next++) % Rows();
      if (seen.insert(key).second) batch.push_back(key);
    }
  }
  return batches;
}

// use(keys, rows) against Gather.
template <typename Use>
void Run(benchmark::State& state, Use use) {
  UseOneThread();
  Store& store = Store::Shared();
  const size_t keys = static_cast<size_t>(state.range(0));
  const std::vector<std::vector<Key>> batches = MakeBatches(keys);
  std::vector<float> rows(keys * kDim), plain(keys * kDim);
  double table_seconds = 0, plain_seconds = 0, checksum = 0;
  int batch = 0;
  for (auto _ : state) {
    const double start = ThreadSeconds();
    use(store.table(), batches[batch], rows);
    const double middle = ThreadSeconds();
    // Another batch: what the table has just read is in the cache.
    store.Gather(batches[(batch + kBatches / 2) % kBatches], plain.data());
    benchmark::DoNotOptimize(plain.data());
    const double end = ThreadSeconds();
    state.SetIterationTime(middle - start);
    table_seconds += middle - start;
    plain_seconds += end - middle;
    batch = (batch + 1) % kBatches;
  }
  CHECK(store.table().Pull(batches[0], PullMode::kLook, rows).ok());
  for (const float value : rows) checksum += value;
  const double items = static_cast<double>(state.iterations()) * static_cast<double>(keys);
  state.counters["rows/s"] = items / table_seconds;
  state.counters["gather_rows/s"] = items / plain_seconds;
  state.counters["of_gather"] = plain_seconds / table_seconds;
  state.counters["checksum"] = checksum;
}

void Lookup(benchmark::State& state) {
  Run(state, [](Table& table, const std::vector<Key>& keys, std::span<float> rows) {
    CHECK(table.Pull(keys, PullMode::kCreate, rows).ok());
  });
}
BENCHMARK(Lookup)->Arg(512)->Arg(4096)->Arg(16384)->UseManualTime();

void Update(benchmark::State& state) {
  std::vector<float> gradients(static_cast<size_t>(state.range(0)) * kDim);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(RandomUniform(3, i) - 0.5);
  Run(state, [&](Table& table, const std::vector<Key>& keys, std::span<float>) {
    CHECK(table.Apply(keys, gradients, {}).ok());
  });
}
BENCHMARK(Update)->Arg(4096)->Arg(16384)->UseManualTime();

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
