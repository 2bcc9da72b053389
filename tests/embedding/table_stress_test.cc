// Writers, readers, exports and two tables that fight for one small budget, all at once. Under SGD with a constant
// gradient, column c of a row after n updates is n * (c + 1), exactly; so any pull and any exported record tells how
// often the row was updated, and a torn row, a lost update or state of another moment shows in one look. The background
// thread writes for stripes of a few rows, so that rows are updated, exported and evicted while they are written.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "embedding/table.h"
#include "tests/support/fake_cold_store.h"
#include "tests/support/row_model.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

constexpr TieredOptions kOptions = {.background_rows_min = 8};
constexpr uint32_t kDim = 19;  // No multiple of a vector.
constexpr uint64_t kKeys = 1'000;
constexpr uint64_t kBudget = 96 << 10;  // Of two tables, each of which would take more alone.
constexpr int kWriters = 3, kReaders = 2, kTables = 2;
#ifdef NDEBUG
constexpr int kRounds = 3'000;
#else
constexpr int kRounds = 300;
#endif

// How many updates the row shows; -1 if it is torn.
int64_t UpdatesOf(const float* row) {
  for (uint32_t c = 0; c < kDim; ++c) {
    if (row[c] != row[0] * static_cast<float>(c + 1)) return -1;
  }
  return static_cast<int64_t>(row[0]);
}

std::vector<Key> RandomKeys(size_t n, std::mt19937_64* random) {
  std::vector<Key> keys;
  while (keys.size() < n) {
    const Key key = RandomBits(2, (*random)() % kKeys);
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  return keys;
}

TableSpec Spec(int t) {
  TableSpec spec;
  spec.name = "t" + std::to_string(t);
  spec.dim = kDim;
  spec.optimizer = {.kind = SparseOptimizerKind::kSgd, .learning_rate = 1};
  spec.initializer = {InitializerKind::kConstant, 0};
  return spec;
}

// Threads of one table; each checks what it sees. Ends with the table whole and every update in it.
class Stress {
 public:
  explicit Stress(Table* table) : table_(table), applied_(kKeys) {
    for (Key i = 0; i < kKeys; ++i) number_[RandomBits(2, i)] = i;
  }

  void Start(std::vector<std::thread>* threads) {
    for (int w = 0; w < kWriters; ++w) threads->emplace_back([this, w] { Write(static_cast<uint64_t>(w)); });
    for (int r = 0; r < kReaders; ++r) threads->emplace_back([this, r] { Read(static_cast<uint64_t>(r)); });
    threads->emplace_back([this] { Export(); });
  }

  void CheckEnd() {
    const absl::StatusOr<Records> records = ExportAll(table_);
    ASSERT_TRUE(records.ok()) << records.status();
    ASSERT_FALSE(records->empty());
    for (const auto& [at, record] : *records) CheckRecord(at.second, record, applied_[number_.at(at.second)]);
  }

 private:
  void Write(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<float> gradients;
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<Key> keys = RandomKeys(1 + random() % 40, &random);
      gradients.clear();
      for (size_t i = 0; i < keys.size(); ++i) {
        for (uint32_t c = 0; c < kDim; ++c) gradients.push_back(-static_cast<float>(c + 1));
      }
      ASSERT_TRUE(table_->Apply(keys, gradients, {}).ok());
      for (const Key key : keys) ++applied_[number_.at(key)];
    }
  }

  void Read(uint64_t seed) {
    std::mt19937_64 random(100 + seed);
    std::vector<int64_t> seen(kKeys, 0);
    std::vector<float> rows;
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<Key> keys = RandomKeys(1 + random() % 40, &random);
      rows.assign(keys.size() * kDim, -1);
      ASSERT_TRUE(table_->Pull(keys, round % 2 == 0 ? PullMode::kLook : PullMode::kCreate, rows).ok());
      for (size_t i = 0; i < keys.size(); ++i) {
        const int64_t updates = UpdatesOf(rows.data() + i * kDim);
        int64_t& before = seen[number_.at(keys[i])];
        ASSERT_GE(updates, 0) << "torn row of key " << keys[i];
        ASSERT_GE(updates, before) << "an update of key " << keys[i] << " was lost";
        before = updates;
      }
    }
  }

  void Export() {
    for (int round = 0; round < kRounds / 50; ++round) {
      const absl::StatusOr<Records> records = ExportAll(table_);
      ASSERT_TRUE(records.ok()) << records.status();
      for (const auto& [at, record] : *records) CheckRecord(at.second, record, -1);
    }
  }

  // Weights and metadata of one moment, and of `updates` updates if that is not -1.
  void CheckRecord(Key key, const std::string& record, int64_t updates) {
    const RowLayout layout = table_->spec().Layout();
    std::vector<float> row(kDim);
    LoadWeights(layout, record.data(), row.data());
    ASSERT_EQ(UpdatesOf(row.data()), layout.Metadata(record.data()).updates) << "torn record of key " << key;
    if (updates >= 0) {
      ASSERT_EQ(UpdatesOf(row.data()), updates) << "key " << key;
    }
  }

  Table* const table_;
  std::unordered_map<Key, uint64_t> number_;
  std::vector<std::atomic<int64_t>> applied_;  // Relaxed would do: read once the threads have ended.
};

void RunAll(const std::vector<std::unique_ptr<Table>>& tables) {
  std::vector<std::unique_ptr<Stress>> stresses;
  std::vector<std::thread> threads;
  for (const auto& table : tables) {
    stresses.push_back(std::make_unique<Stress>(table.get()));
    stresses.back()->Start(&threads);
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& stress : stresses) stress->CheckEnd();
}

void ExpectWrittenInBackground(const std::vector<std::unique_ptr<Table>>& tables) {
  for (const auto& table : tables) EXPECT_GT(table->Stats().written_in_background, 100u);
}

TEST(TableStress, HostTables) {
  MemoryBudget budget(uint64_t{64} << 20);
  std::vector<std::unique_ptr<Table>> tables;
  for (int t = 0; t < kTables; ++t) tables.push_back(MakeHostTable(Spec(t), &budget));
  RunAll(tables);
}

TEST(TableStress, TieredTablesThatEvictAllTheTime) {
  for (const uint64_t bytes : {uint64_t{1}, kBudget}) {
    SCOPED_TRACE(bytes);
    Faults none;
    FakeColdStore cold(&none);
    MemoryBudget budget(bytes);
    std::vector<std::unique_ptr<Table>> tables;
    for (int t = 0; t < kTables; ++t) tables.push_back(MakeTieredTable(Spec(t), &budget, &cold, kOptions).value());
    RunAll(tables);
    for (const auto& table : tables) EXPECT_GT(table->Stats().evictions, 100u);
    if (bytes > 1) ExpectWrittenInBackground(tables);
  }
}

TEST(TableStress, TieredTablesOverRocksDb) {
  TemporaryDirectory directory;
  const auto cold = ColdStore::Create(directory.File("cold")).value();
  MemoryBudget budget(kBudget);
  std::vector<std::unique_ptr<Table>> tables;
  for (int t = 0; t < kTables; ++t) tables.push_back(MakeTieredTable(Spec(t), &budget, cold.get(), kOptions).value());
  RunAll(tables);
  ExpectWrittenInBackground(tables);
}

}  // namespace
}  // namespace sparrow
