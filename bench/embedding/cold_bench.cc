// Questions: what share of RocksDB's own MultiGet do cold reads of a table reach (SparrowMultiGet beside Look), what do
// training pulls and updates cost when most of a table is cold, with dirty rows written by the background thread or
// only in line (Training), and does memory stay within the budget meanwhile (Stress)?
// Cold reads: bench/support/cold_reads.h says what is fixed; 400,000 rows (smoke: 20,000), batches of 4,096 unique
// keys. Bound: the same keys through MultiGet of the same records with the same options, in batches that take turns
// with the table's. Training: batches of 4,096 keys, half by Zipf and half uniform over all rows, pulled and updated;
// before each of the two the table rests for so many milliseconds (a server waits while workers compute), outside the
// time that counts. in_line: of the rows written, those that a call wrote itself. Stress: a server's split of a budget
// of SPARROW_STRESS_MIB (1,024; smoke: 16), pulls and updates on two threads for SPARROW_STRESS_SECONDS (60; smoke: 1).
// Reported: the largest growth of VmRSS over what the process had before, as a share of the budget, and the share that
// is allowed (bench/support/resident.h); beyond it, the process ends with an error. A whole server, with its messages
// and what waits in it, is measured by `sparrow-bench memory`.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "bench/support/cold_reads.h"
#include "bench/support/resident.h"
#include "embedding/table.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

const uint32_t kDim = ColdTableSpec().dim;
constexpr size_t kBatch = ColdReads::kBatch;

bool Smoke() { return std::getenv("SPARROW_BENCH_SMOKE") != nullptr; }

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ColdReadsOfTable(benchmark::State& state) {
  static ColdReads reads(Smoke() ? 20'000 : 400'000);  // Made once.
  ColdReads::Batch sum;
  for (auto _ : state) {
    const ColdReads::Batch batch = reads.Next();
    state.SetIterationTime(batch.table_seconds);
    sum.rows += batch.rows;
    sum.cold += batch.cold;
    sum.table_seconds += batch.table_seconds;
    sum.multiget_seconds += batch.multiget_seconds;
    sum.checksum += batch.checksum;
  }
  state.SetItemsProcessed(static_cast<int64_t>(sum.rows));
  state.counters["multiget_rows/s"] = static_cast<double>(sum.rows) / sum.multiget_seconds;
  state.counters["of_multiget"] = sum.multiget_seconds / sum.table_seconds;
  state.counters["cold"] = static_cast<double>(sum.cold) / static_cast<double>(sum.rows);
  state.counters["checksum"] = static_cast<double>(sum.checksum);
}
BENCHMARK(ColdReadsOfTable)->Name("ColdReads")->UseManualTime()->Unit(benchmark::kMillisecond);

// Half by Zipf, as many that are mostly cold.
std::vector<Key> TrainingBatch(size_t n, uint64_t rows, ZipfKeys* zipf, std::mt19937_64* random) {
  std::vector<Key> keys = zipf->Batch(n / 2);
  for (size_t i = keys.size(); i < n; ++i) keys.push_back(ZipfKeys::KeyOf((*random)() % rows));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

void Training(benchmark::State& state) {
  const TieredOptions options = {.background_rows_min = state.range(0) != 0 ? TieredOptions().background_rows_min
                                                                            : TieredOptions::kInLineOnly};
  const std::chrono::milliseconds rest(state.range(1));
  const uint64_t rows = Smoke() ? 50'000 : 400'000;
  TemporaryDirectory directory;
  MemoryBudget budget(rows / 10 * (ColdTableSpec().Layout().slot_bytes() + 32));
  const auto cold =
      ColdStore::Create(directory.path() + "/table", {.block_cache_bytes = 16 << 20, .write_buffer_bytes = 16 << 20})
          .value();
  const auto table = MakeTieredTable(ColdTableSpec(), &budget, cold.get(), options).value();
  ZipfKeys zipf(rows, 0, 100);
  std::mt19937_64 random(7);
  std::vector<float> floats(kBatch * kDim);
  std::vector<double> pulls, updates;
  double checksum = 0;
  TableStats before;
  uint64_t step = 0;
  const auto one = [&] {
    const std::vector<Key> keys = TrainingBatch(kBatch, rows, &zipf, &random);
    std::this_thread::sleep_for(rest);
    const std::span<float> view = std::span(floats).first(keys.size() * kDim);
    const auto start = std::chrono::steady_clock::now();
    CHECK(table->Pull(keys, PullMode::kCreate, view).ok());
    const double pulled = Seconds(start);
    std::this_thread::sleep_for(rest);
    const auto pushed = std::chrono::steady_clock::now();
    CHECK(table->Apply(keys, view, {.step = ++step}).ok());
    updates.push_back(Seconds(pushed));
    pulls.push_back(pulled);
    checksum += floats[0];
    return pulls.back() + updates.back();
  };
  while (table->Stats().rows < rows * 9 / 10) one();  // Until most rows are there, and nearly all of them cold.
  pulls.clear();
  updates.clear();
  before = table->Stats();
  for (auto _ : state) state.SetIterationTime(one());
  const TableStats stats = table->Stats();
  const auto in_line = static_cast<double>(stats.written_in_line - before.written_in_line);
  const auto in_background = static_cast<double>(stats.written_in_background - before.written_in_background);
  state.SetItemsProcessed(static_cast<int64_t>(2 * kBatch * pulls.size()));
  state.counters["pull_p50_ms"] = 1e3 * Quantile(pulls, 0.5);
  state.counters["pull_p99_ms"] = 1e3 * Quantile(pulls, 0.99);
  state.counters["apply_p50_ms"] = 1e3 * Quantile(updates, 0.5);
  state.counters["apply_p99_ms"] = 1e3 * Quantile(updates, 0.99);
  state.counters["in_line"] = in_line / std::max(1.0, in_line + in_background);
  state.counters["written_of_evicted"] =
      (in_line + in_background) / std::max(1.0, static_cast<double>(stats.evictions - before.evictions));
  state.counters["checksum"] = checksum;
}
BENCHMARK(Training)
    ->ArgNames({"background", "rest_ms"})
    ->ArgsProduct({{0, 1}, {0, 10}})
    ->Iterations(Smoke() ? 20 : 200)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

bool beyond_budget = false;  // In some run of Stress. Google Benchmark's own exit status does not tell of errors.

void Stress(benchmark::State& state) {
  const char* const given = std::getenv("SPARROW_STRESS_SECONDS");
  const double seconds = given != nullptr ? std::atof(given) : Smoke() ? 1 : 60;
  const char* const mebibytes = std::getenv("SPARROW_STRESS_MIB");
  const uint64_t budget_bytes = (mebibytes != nullptr ? std::strtoull(mebibytes, nullptr, 10)
                                 : Smoke()            ? 16u
                                                      : 1024u)
                                << 20;
  const uint64_t rows = 10 * budget_bytes / ColdTableSpec().Layout().slot_bytes();
  constexpr int kThreads = 2;
  for (auto _ : state) {
    TemporaryDirectory directory;
    // What the benchmark itself needs is there before.
    std::vector<ZipfKeys> zipf_of_thread;
    for (int t = 0; t < kThreads; ++t) zipf_of_thread.emplace_back(rows, 0, 100 + t);
    const uint64_t before = ResidentBytes();
    // As server/shard.cc splits it.
    MemoryBudget budget(budget_bytes / 8 * 7);
    const auto cold = ColdStore::Create(directory.path() + "/table", {.block_cache_bytes = budget_bytes / 16,
                                                                      .write_buffer_bytes = budget_bytes / 16})
                          .value();
    const auto table = MakeTieredTable(ColdTableSpec(), &budget, cold.get()).value();
    std::atomic<uint64_t> used{0};
    std::atomic<int> running{kThreads};
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        ZipfKeys& zipf = zipf_of_thread[static_cast<size_t>(t)];
        std::mt19937_64 random(t);
        std::vector<float> floats(kBatch * kDim);
        for (uint64_t step = 0; Seconds(start) < seconds; ++step) {
          const std::vector<Key> keys = TrainingBatch(kBatch, rows, &zipf, &random);  // All rows come into being soon.
          const std::span<float> view = std::span(floats).first(keys.size() * kDim);
          CHECK(table->Pull(keys, PullMode::kCreate, view).ok());
          CHECK(table->Apply(keys, view, {.step = step}).ok());
          used += 2 * keys.size();
        }
        --running;
      });
    }
    uint64_t most = 0;
    while (running > 0) {
      most = std::max(most, ResidentBytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    for (std::thread& thread : threads) thread.join();
    const uint64_t grown = most - std::min(most, before);
    const double budget_share = 1 / static_cast<double>(budget_bytes);
    const TableStats stats = table->Stats();
    state.counters["rows_used/s"] = static_cast<double>(used) / Seconds(start);
    state.counters["rss_of_budget"] = static_cast<double>(grown) * budget_share;
    state.counters["allowed"] = static_cast<double>(ResidentBytesMax(budget_bytes)) * budget_share;
    state.counters["rows"] = static_cast<double>(stats.rows);
    state.counters["dram_rows"] = static_cast<double>(stats.dram_rows);
    state.counters["disk_MB"] = static_cast<double>(stats.disk_bytes) / 1e6;
    state.counters["cold_reads"] = static_cast<double>(stats.cold_reads);
    if (grown > ResidentBytesMax(budget_bytes)) {
      const std::string error = "memory grew by " + std::to_string(grown) + " bytes, of which a budget of " +
                                std::to_string(budget_bytes) + " allows " +
                                std::to_string(ResidentBytesMax(budget_bytes));
      state.SkipWithError(error.c_str());
      beyond_budget = true;
    }
  }
}
BENCHMARK(Stress)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return sparrow::beyond_budget ? 1 : 0;
}
