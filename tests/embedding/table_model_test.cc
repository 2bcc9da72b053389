// Random operations on a table and on its model (tests/support/row_model.h), which must agree bit for bit at every
// step. The budgets are so small that rows are evicted and come back all the time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <set>

#include "embedding/table.h"
#include "tests/support/row_model.h"
#include "tests/support/table_specs.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

class Checker {
 public:
  Checker(Table* table, uint64_t seed) : table_(table), model_(table->spec()), random_(seed) {}

  void Run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      switch (Below(40)) {
        case 0:
          Import();
          break;
        case 1:
          if (Below(8) == 0) Export();
          break;
        default:
          Below(2) == 0 ? Pull() : Apply();
      }
    }
    Export();
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }

  // From a small range and a large one, so that some rows are hot and some absent.
  Key RandomKey() { return Below(3) == 0 ? RandomBits(1, Below(3'000)) : RandomBits(1, Below(100)); }

  std::vector<Key> RandomKeys() {
    std::set<Key> keys;
    for (uint64_t n = Below(12); n > 0; --n) keys.insert(RandomKey());
    std::vector<Key> shuffled(keys.begin(), keys.end());
    std::shuffle(shuffled.begin(), shuffled.end(), random_);
    return shuffled;
  }

  void Pull() {
    const std::vector<Key> keys = RandomKeys();
    const PullMode mode = Below(3) == 0 ? PullMode::kLook : PullMode::kCreate;
    std::vector<float> rows(keys.size() * table_->dim());
    ASSERT_TRUE(table_->Pull(keys, mode, rows).ok());
    ASSERT_EQ(rows, model_.Pull(keys, mode));
  }

  void Apply() {
    const std::vector<Key> keys = RandomKeys();
    std::vector<float> gradients(keys.size() * table_->dim());
    for (float& g : gradients) g = std::uniform_real_distribution<float>(-1, 1)(random_);
    const ApplyOptions options = {.gradient_scale = 0.25 * static_cast<double>(1 + Below(4)),
                                  .learning_rate_factor = 0.5 * static_cast<double>(Below(3)),
                                  .step = random_()};
    ASSERT_TRUE(table_->Apply(keys, gradients, options).ok());
    model_.Apply(keys, gradients, options);
  }

  void Import() {
    const Key key = RandomKey();
    std::string record(table_->spec().Layout().record_bytes(), '\0');
    InitRowCpu(table_->spec(), Below(100), record.data());
    ASSERT_TRUE(table_->Import(key, record).ok());
    model_.Import(key, record);
  }

  void Export() {
    const absl::StatusOr<Records> records = ExportAll(table_);
    ASSERT_TRUE(records.ok()) << records.status();
    ASSERT_TRUE(*records == model_.records());
    ASSERT_EQ(table_->Stats().rows, model_.records().size());
  }

  Table* const table_;
  RowModel model_;
  std::mt19937_64 random_;
};

// SPARROW_TEST_SEED repeats a failure; by default each run is the same.
uint64_t Seed() {
  const char* const given = std::getenv("SPARROW_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20'240'601;
  std::cout << "SPARROW_TEST_SEED=" << seed << "\n";
  return seed;
}

TEST(TableModel, ATieredTableThatEvictsConstantlyEqualsItsModel) {
  const uint64_t seed = Seed();
  TemporaryDirectory directory;
  const auto cold = ColdStore::Create(directory.File("cold")).value();
  for (const SparseOptimizerKind kind : kAllOptimizers) {
    for (const uint64_t budget_bytes : {uint64_t{1}, uint64_t{16} << 10}) {
      SCOPED_TRACE(testing::Message() << "optimizer " << static_cast<int>(kind) << ", budget " << budget_bytes);
      MemoryBudget budget(budget_bytes);
      const auto table = MakeTieredTable(TestSpec("t", 3, kind), &budget, cold.get()).value();
      Checker(table.get(), seed + static_cast<uint64_t>(kind)).Run(2'500);
      if (HasFatalFailure()) return;
      EXPECT_GT(table->Stats().evictions, 1'000u);
    }
  }
}

TEST(TableModel, AHostTableEqualsItsModel) {
  const uint64_t seed = Seed();
  for (const SparseOptimizerKind kind : kAllOptimizers) {
    MemoryBudget budget(1 << 24);
    const auto table = MakeHostTable(TestSpec("t", 3, kind), &budget);
    Checker(table.get(), seed + static_cast<uint64_t>(kind)).Run(2'500);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sparrow
