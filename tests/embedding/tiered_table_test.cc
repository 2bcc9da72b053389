#include <sys/resource.h>

#include <csignal>

#include "tests/support/table_contract.h"
#include "tests/support/table_inputs.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

class TieredHome final : public TableHome {
 public:
  explicit TieredHome(uint64_t budget_bytes, const TieredOptions& options = {})
      : options_(options), budget_(budget_bytes), cold_(ColdStore::Create(directory_.File("cold")).value()) {}

  std::unique_ptr<Table> Make(TableSpec spec) override {
    return MakeTieredTable(std::move(spec), &budget_, cold_.get(), options_).value();
  }
  MemoryBudget& budget() { return budget_; }
  std::string directory() const { return directory_.File("cold"); }

 private:
  TemporaryDirectory directory_;
  const TieredOptions options_;
  MemoryBudget budget_;
  std::unique_ptr<ColdStore> cold_;
};

TableKind Kind(std::string name, uint64_t budget_bytes, const TieredOptions& options = {}) {
  return {std::move(name), [=] { return std::make_unique<TieredHome>(budget_bytes, options); }};
}

constexpr TieredOptions kEager = {.background_rows_min = 8};  // The background thread writes for few rows, too.

// Nothing ever evicted; evictions now and then; one row a stripe, so that every batch evicts what it just brought in.
INSTANTIATE_TEST_SUITE_P(Tiered, TableContract,
                         testing::ValuesIn(WithEveryStorage({Kind("Roomy", uint64_t{1} << 30), Kind("Small", 32 << 10),
                                                             Kind("Tiny", 1)})),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(TieredInBackground, TableContract, testing::Values(Kind("Eager", 64 << 10, kEager)),
                         testing::PrintToStringParamName());

TEST(TieredTable, ATableManyTimesTheBudgetTrainsBitEqualToOneThatFits) {
  constexpr uint32_t kDim = 16;
  constexpr uint64_t kBudget = 256 << 10;
  TieredHome home(kBudget);
  MemoryBudget plenty(1 << 30);
  const TableSpec spec = TestSpec("t", kDim, SparseOptimizerKind::kAdam);
  const auto small = home.Make(spec);
  const auto large = MakeHostTable(spec, &plenty);
  std::mt19937_64 random(77);
  for (uint64_t step = 0; step < 60; ++step) {
    std::vector<Key> keys;
    for (int i = 0; i < 1000; ++i) {  // A few rows often, most seldom.
      const double u = std::uniform_real_distribution<double>(0, 1)(random);
      keys.push_back(static_cast<Key>(20'000 * u * u * u));
    }
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    std::vector<float> a(keys.size() * kDim), b(keys.size() * kDim);
    ASSERT_TRUE(small->Pull(keys, PullMode::kCreate, a).ok());
    ASSERT_TRUE(large->Pull(keys, PullMode::kCreate, b).ok());
    ASSERT_EQ(a, b) << "step " << step;
    const std::vector<float> gradients = RandomFloats(keys.size() * kDim, 1, &random);
    ASSERT_TRUE(small->Apply(keys, gradients, {.step = step}).ok());
    ASSERT_TRUE(large->Apply(keys, gradients, {.step = step}).ok());
    ASSERT_LE(home.budget().used(), static_cast<int64_t>(kBudget));
  }
  EXPECT_EQ(*ExportAll(small.get()), *ExportAll(large.get()));
  const TableStats stats = small->Stats();
  EXPECT_EQ(stats.rows, large->Stats().rows);
  EXPECT_GT(stats.rows * spec.Layout().record_bytes(), 6 * kBudget);
  EXPECT_GT(stats.evictions, stats.rows / 2);
  EXPECT_GT(stats.cold_reads, 0u);
  EXPECT_LE(stats.dram_rows + stats.disk_rows, 2 * stats.rows);
  EXPECT_GE(stats.dram_rows + stats.disk_rows, stats.rows);
}

TEST(TieredTable, MostOfTheBudgetIsUsedAndNoneBeyond) {
  constexpr uint64_t kBudget = 2 << 20;
  TieredHome home(kBudget);
  const auto table = home.Make(TestSpec("t", 16, SparseOptimizerKind::kRowwiseAdagrad));
  std::vector<float> rows(500 * 16);
  for (Key first = 0; first < 50'000; first += 500) {
    ASSERT_TRUE(table->Pull(KeysFrom(first, 500), PullMode::kCreate, rows).ok());
    ASSERT_LE(home.budget().used(), static_cast<int64_t>(kBudget));
  }
  EXPECT_GT(home.budget().used(), static_cast<int64_t>(kBudget * 97 / 100));
  EXPECT_EQ(table->Stats().rows, 50'000u);
}

TEST(TieredTable, RowsInConstantUseStayInMemory) {
  TieredHome home(256 << 10);
  const auto table = home.Make(TestSpec("t", 16, SparseOptimizerKind::kSgd));
  const std::vector<Key> hot = KeysFrom(1'000'000, 300);
  std::vector<float> hot_rows(300 * 16), cold_rows(100 * 16);
  for (Key first = 0; first < 10'000; first += 100) {
    ASSERT_TRUE(table->Pull(hot, PullMode::kCreate, hot_rows).ok());
    ASSERT_TRUE(table->Pull(KeysFrom(first, 100), PullMode::kCreate, cold_rows).ok());
  }
  EXPECT_GT(table->Stats().evictions, 5'000u);
  EXPECT_LT(table->Stats().cold_reads, 300u);  // Of 30,000 uses of hot rows.
}

TEST(TieredTable, LookingAtColdRowsLeavesThemCold) {
  TieredHome home(64 << 10);
  const auto table = home.Make(TestSpec("t", 16, SparseOptimizerKind::kSgd));
  const std::vector<Key> keys = KeysFrom(0, 5'000);
  std::vector<float> rows(5'000 * 16), looked(5'000 * 16);
  ASSERT_TRUE(table->Pull(keys, PullMode::kCreate, rows).ok());
  const TableStats before = table->Stats();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(table->Pull(keys, PullMode::kLook, looked).ok());
    EXPECT_EQ(looked, rows);
  }
  const TableStats after = table->Stats();
  EXPECT_EQ(after.dram_rows, before.dram_rows);
  EXPECT_EQ(after.evictions, before.evictions);
  EXPECT_EQ(after.dram_bytes, before.dram_bytes);
  EXPECT_EQ(after.cold_reads - before.cold_reads, 3 * (5'000 - before.dram_rows));
}

TEST(TieredTable, ATableThatComesLateGetsItsShareOfAFullBudget) {
  constexpr uint64_t kBudget = 2 << 20;
  TieredHome home(kBudget);
  const auto first = home.Make(TestSpec("first", 16, SparseOptimizerKind::kSgd));
  const auto second = home.Make(TestSpec("second", 16, SparseOptimizerKind::kSgd));
  std::vector<float> rows(500 * 16);
  for (Key key = 0; key < 30'000; key += 500) {
    ASSERT_TRUE(first->Pull(KeysFrom(key, 500), PullMode::kCreate, rows).ok());
  }
  ASSERT_GT(first->Stats().dram_bytes, kBudget * 9 / 10);
  for (Key key = 0; key < 60'000; key += 500) {
    ASSERT_TRUE(second->Pull(KeysFrom(key, 500), PullMode::kCreate, rows).ok());
    ASSERT_LE(home.budget().used(), static_cast<int64_t>(kBudget + kBudget / 50));
  }
  EXPECT_GT(second->Stats().dram_bytes, kBudget * 2 / 5);
  EXPECT_GT(first->Stats().dram_bytes, kBudget * 2 / 5);
  // And what was moved is what it was.
  std::vector<float> looked(500 * 16), fresh(500 * 16);
  MemoryBudget plenty(1 << 30);
  const auto reference = MakeHostTable(first->spec(), &plenty);
  for (Key key = 0; key < 30'000; key += 500) {
    ASSERT_TRUE(first->Pull(KeysFrom(key, 500), PullMode::kLook, looked).ok());
    ASSERT_TRUE(reference->Pull(KeysFrom(key, 500), PullMode::kLook, fresh).ok());
    ASSERT_EQ(looked, fresh);
  }
}

TEST(TieredTable, SeveralTablesUnderOneBudgetKeepTheirOwnRowsWhileThreadsUseAll) {
  TieredHome home(128 << 10);
  constexpr int kTables = 3;
  std::vector<std::unique_ptr<Table>> tables;
  for (int t = 0; t < kTables; ++t) {
    TableSpec spec = TestSpec("t" + std::to_string(t), 8, SparseOptimizerKind::kSgd);
    spec.optimizer = {.kind = SparseOptimizerKind::kSgd, .learning_rate = 1};
    spec.initializer = {InitializerKind::kConstant, static_cast<double>(1000 * t)};
    tables.push_back(home.Make(spec));
  }
  constexpr int kRounds = 25;
  const std::vector<Key> keys = KeysFrom(0, 600);
  std::vector<std::thread> threads;
  for (int t = 0; t < kTables; ++t) {
    for (int copy = 0; copy < 2; ++copy) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < kRounds * (t + 1); ++round) {
          ASSERT_TRUE(tables[t]->Apply(keys, std::vector<float>(keys.size() * 8, -1.0f), {}).ok());
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kTables; ++t) {
    std::vector<float> rows(keys.size() * 8);
    ASSERT_TRUE(tables[t]->Pull(keys, PullMode::kLook, rows).ok());
    EXPECT_THAT(rows, testing::Each(static_cast<float>(1000 * t + 2 * kRounds * (t + 1))));
    EXPECT_EQ(tables[t]->Stats().rows, keys.size());
  }
}

// A file size limit stands for the full disk: writes past it fail with an error, as they would there.
TEST(TieredTable, AFullDiskIsAnErrorThatNamesTheDirectoryAndNoRowIsLost) {
  TieredHome home(256 << 10);
  const TableSpec spec = TestSpec("t", 64, SparseOptimizerKind::kAdagrad);
  const auto table = home.Make(spec);
  RowModel model(spec);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old_limit;
  limit.rlim_cur = 256 << 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  absl::Status status;
  Key next = 0;
  std::vector<float> rows(500 * 64);
  for (; next < 1'000'000 && status.ok(); next += 500) {
    const std::vector<Key> keys = KeysFrom(next, 500);
    status = table->Pull(keys, PullMode::kCreate, rows);
    if (status.ok()) model.Pull(keys, PullMode::kCreate);
  }
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(home.directory()));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("table \"t\""));
  // Every row that a successful call made is there and right; looking needs no disk space.
  for (Key first = 0; first + 500 < next; first += 500) {
    const std::vector<Key> keys = KeysFrom(first, 500);
    ASSERT_TRUE(table->Pull(keys, PullMode::kLook, rows).ok());
    ASSERT_EQ(rows, model.Pull(keys, PullMode::kLook)) << first;
  }
  EXPECT_LE(home.budget().used(), (256 << 10) * 103 / 100);
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
}

TEST(TieredTable, ADiskBudgetThatIsUsedUpIsAnErrorAndNoRowIsLost) {
  TemporaryDirectory directory;
  MemoryBudget budget(256 << 10);
  const auto cold =
      ColdStore::Create(directory.File("cold"),
                        {.block_cache_bytes = 1 << 20, .write_buffer_bytes = 1 << 20, .disk_bytes_max = 6 << 20})
          .value();
  const TableSpec spec = TestSpec("t", 64, SparseOptimizerKind::kAdagrad);
  const auto table = MakeTieredTable(spec, &budget, cold.get()).value();
  RowModel model(spec);
  absl::Status status;
  Key next = 0;
  std::vector<float> rows(100 * 64);
  for (; next < 20'000 && status.ok(); next += 100) {
    status = table->Pull(KeysFrom(next, 100), PullMode::kCreate, rows);
    if (status.ok()) model.Pull(KeysFrom(next, 100), PullMode::kCreate);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("table \"t\""), testing::HasSubstr(directory.File("cold")),
                             testing::HasSubstr("6291456 bytes")));
  EXPECT_GT(next, 3'000u);
  for (Key first = 0; first + 100 < next; first += 100) {
    ASSERT_TRUE(table->Pull(KeysFrom(first, 100), PullMode::kLook, rows).ok());
    ASSERT_EQ(rows, model.Pull(KeysFrom(first, 100), PullMode::kLook)) << first;
  }
}

}  // namespace
}  // namespace sparrow
