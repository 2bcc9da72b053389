// Question: how many rows a second can be pulled from and applied to tables, and what share is that of the machine's
// random access to memory?
// Fixed: 8 tables of 250,000 rows (smoke: 2,000), row-wise Adagrad, batches of 50,000 look-ups (6,250 a table, unique
// keys: what a server gets), tables one after the other, all cores inside a table. Varies: dim; keys uniform or Zipf
// with exponent 1.05; DRAM alone, DRAM over RocksDB with everything in DRAM, and with a budget for a quarter of it.
// Bound: the same rows gathered from one array on huge pages by their number, no index, no locks ("gather_rows/s", and
// "of_gather" as a share).

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "embedding/pages.h"
#include "embedding/table.h"

namespace sparrow {
namespace {

bool Smoke() { return std::getenv("SPARROW_BENCH_SMOKE") != nullptr; }

constexpr int kTables = 8;
constexpr int kBatches = 16;  // Different ones, in turn.
uint64_t RowsPerTable() { return Smoke() ? 2'000 : 250'000; }
uint64_t LookupsPerTable() { return Smoke() ? 500 : 6'250; }

enum class Keys { kUniform, kZipf };
enum class Tier { kHost, kTieredAllInDram, kTieredQuarterInDram };

// Row numbers of a batch, each once.
class RowNumbers {
 public:
  explicit RowNumbers(Keys kind) : kind_(kind), random_(7), cumulative_(RowsPerTable()) {
    constexpr double kExponent = 1.05;
    double sum = 0;
    for (size_t rank = 0; rank < cumulative_.size(); ++rank) {
      cumulative_[rank] = sum += std::pow(static_cast<double>(rank + 1), -kExponent);
    }
  }

  std::vector<uint32_t> Batch() {
    std::unordered_set<uint32_t> seen;
    std::vector<uint32_t> rows;
    for (uint64_t i = 0; i < LookupsPerTable(); ++i) {
      const uint32_t row = One();
      if (seen.insert(row).second) rows.push_back(row);
    }
    return rows;
  }

 private:
  uint32_t One() {
    if (kind_ == Keys::kUniform) return static_cast<uint32_t>(random_() % RowsPerTable());
    const double u = std::uniform_real_distribution<double>(0, cumulative_.back())(random_);
    const auto rank = std::lower_bound(cumulative_.begin(), cumulative_.end(), u) - cumulative_.begin();
    return static_cast<uint32_t>(RandomBits(3, rank) % RowsPerTable());  // Hot rows lie anywhere.
  }

  const Keys kind_;
  std::mt19937_64 random_;
  std::vector<double> cumulative_;
};

// keys[batch][table]
struct Batches {
  std::vector<std::vector<std::vector<uint32_t>>> rows;
  std::vector<std::vector<std::vector<Key>>> keys;
  uint64_t keys_per_round = 0;  // Of all batches.
};

Key KeyOf(uint32_t row) { return RandomBits(11, row); }

Batches MakeBatches(Keys kind) {
  RowNumbers numbers(kind);
  Batches batches;
  batches.rows.resize(kBatches);
  batches.keys.resize(kBatches);
  for (int b = 0; b < kBatches; ++b) {
    for (int t = 0; t < kTables; ++t) {
      batches.rows[b].push_back(numbers.Batch());
      std::vector<Key>& keys = batches.keys[b].emplace_back();
      for (const uint32_t row : batches.rows[b].back()) keys.push_back(KeyOf(row));
      batches.keys_per_round += keys.size();
    }
  }
  return batches;
}

TableSpec SpecOf(uint32_t dim, int table) {
  return {.name = "table" + std::to_string(table),
          .dim = dim,
          .bounded_rows = 0,
          .optimizer = {.kind = SparseOptimizerKind::kRowwiseAdagrad, .learning_rate = 0.01, .eps = 1e-8},
          .initializer = {InitializerKind::kUniform, 0.01},
          .seed = RandomBits(1, table)};
}

// Tables with all rows made, and their directory.
class Tables {
 public:
  Tables(Tier tier, uint32_t dim) : budget_(BudgetBytes(tier, dim)) {
    if (tier != Tier::kHost) {
      std::string name = (std::filesystem::temp_directory_path() / "sparrow-bench-XXXXXX").string();
      CHECK(mkdtemp(name.data()) != nullptr);
      directory_ = name;
      auto cold = ColdStore::Create(directory_);
      CHECK(cold.ok()) << cold.status();
      cold_ = std::move(*cold);
    }
    for (int t = 0; t < kTables; ++t) {
      if (tier == Tier::kHost) {
        tables_.push_back(MakeHostTable(SpecOf(dim, t), &budget_));
      } else {
        auto table = MakeTieredTable(SpecOf(dim, t), &budget_, cold_.get());
        CHECK(table.ok()) << table.status();
        tables_.push_back(std::move(*table));
      }
    }
    constexpr uint32_t kChunk = 1'000;
    std::vector<float> rows(kChunk * dim);
    for (uint32_t first = 0; first < RowsPerTable(); first += kChunk) {
      std::vector<Key> keys;
      for (uint32_t row = first; row < first + kChunk; ++row) keys.push_back(KeyOf(row));
      for (auto& table : tables_) CHECK(table->Pull(keys, PullMode::kCreate, rows).ok());
    }
  }
  ~Tables() {
    tables_.clear();
    cold_.reset();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  Table& operator[](int t) { return *tables_[t]; }

 private:
  static uint64_t BudgetBytes(Tier tier, uint32_t dim) {
    constexpr uint64_t kIndexBytes = 32;  // A row, about.
    const uint64_t all = kTables * RowsPerTable() * (SpecOf(dim, 0).Layout().slot_bytes() + kIndexBytes);
    return tier == Tier::kTieredQuarterInDram ? all / 4 : uint64_t{1} << 40;
  }

  MemoryBudget budget_;
  std::string directory_;
  std::unique_ptr<ColdStore> cold_;
  std::vector<std::unique_ptr<Table>> tables_;
};

// Rows a second of the bound.
double GatherRowsPerSecond(const Batches& batches, uint32_t dim) {
  const uint64_t row_bytes = SpecOf(dim, 0).Layout().slot_bytes();
  const Pages memory(kTables * RowsPerTable() * row_bytes);
  for (uint64_t at = 0; at < memory.bytes(); at += 4096) memory.data()[at] = 1;  // Every page is there.
  std::vector<float> out(LookupsPerTable() * dim);
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int b = 0; b < kBatches; ++b) {
      for (int t = 0; t < kTables; ++t) {
        const std::vector<uint32_t>& rows = batches.rows[b][t];
        const char* const table = memory.data() + t * RowsPerTable() * row_bytes;
        ParallelFor(static_cast<int64_t>(rows.size()), 1024, [&](int64_t begin, int64_t end) {
          constexpr int64_t kAhead = 16;
          for (int64_t i = begin; i < end; ++i) {
            if (i + kAhead < end) {
              const char* const next = table + rows[i + kAhead] * row_bytes;
              for (uint64_t at = 0; at < dim * 4; at += 64) __builtin_prefetch(next + at);
            }
            std::memcpy(out.data() + i * dim, table + rows[i] * row_bytes, dim * 4);
          }
        });
        benchmark::DoNotOptimize(out.data());
      }
    }
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<double>(batches.keys_per_round) / best;
}

template <typename Use>
void Run(benchmark::State& state, Tier tier, Keys kind, Use use) {
  const uint32_t dim = static_cast<uint32_t>(state.range(0));
  const Batches batches = MakeBatches(kind);
  Tables tables(tier, dim);
  std::vector<float> floats(LookupsPerTable() * dim);
  int batch = 0;
  int64_t rows = 0;
  double seconds = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (int t = 0; t < kTables; ++t) {
      const std::vector<Key>& keys = batches.keys[batch][t];
      use(tables[t], keys, std::span(floats).first(keys.size() * dim));
      rows += static_cast<int64_t>(keys.size());
    }
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    batch = (batch + 1) % kBatches;
  }
  double checksum = 0;
  for (int t = 0; t < kTables; ++t) {
    CHECK(tables[t]
              .Pull(batches.keys[0][t], PullMode::kLook, std::span(floats).first(batches.keys[0][t].size() * dim))
              .ok());
    for (size_t i = 0; i < batches.keys[0][t].size() * dim; ++i) checksum += floats[i];
  }
  const double gather = GatherRowsPerSecond(batches, dim);
  state.SetItemsProcessed(rows);
  state.SetBytesProcessed(rows * dim * 4);
  state.counters["gather_rows/s"] = gather;
  state.counters["of_gather"] = static_cast<double>(rows) / seconds / gather;
  state.counters["checksum"] = checksum;
}

void Pull(benchmark::State& state, Tier tier, Keys kind) {
  Run(state, tier, kind, [](Table& table, const std::vector<Key>& keys, std::span<float> rows) {
    CHECK(table.Pull(keys, PullMode::kCreate, rows).ok());
  });
}

void Apply(benchmark::State& state, Tier tier, Keys kind) {
  std::vector<float> gradients(LookupsPerTable() * state.range(0));
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(RandomUniform(5, i) - 0.5);
  Run(state, tier, kind, [&](Table& table, const std::vector<Key>& keys, std::span<float> rows) {
    CHECK(table.Apply(keys, std::span<const float>(gradients).first(rows.size()), {}).ok());
  });
}

#define SPARROW_TABLE_BENCH(verb, tier, keys) \
  BENCHMARK_CAPTURE(verb, tier##_##keys, Tier::k##tier, Keys::k##keys)->Arg(16)->Arg(64)->Arg(128)->UseRealTime()
SPARROW_TABLE_BENCH(Pull, Host, Uniform);
SPARROW_TABLE_BENCH(Pull, Host, Zipf);
SPARROW_TABLE_BENCH(Apply, Host, Uniform);
SPARROW_TABLE_BENCH(Apply, Host, Zipf);
SPARROW_TABLE_BENCH(Pull, TieredAllInDram, Uniform);
SPARROW_TABLE_BENCH(Apply, TieredAllInDram, Uniform);
SPARROW_TABLE_BENCH(Pull, TieredQuarterInDram, Uniform);
SPARROW_TABLE_BENCH(Pull, TieredQuarterInDram, Zipf);
SPARROW_TABLE_BENCH(Apply, TieredQuarterInDram, Zipf);

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
