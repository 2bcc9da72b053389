#include "tests/support/table_contract.h"
#include "tests/support/table_inputs.h"

namespace sparrow {
namespace {

class HostHome final : public TableHome {
 public:
  std::unique_ptr<Table> Make(TableSpec spec) override { return MakeHostTable(std::move(spec), &budget_); }

 private:
  MemoryBudget budget_{uint64_t{1} << 30};
};

INSTANTIATE_TEST_SUITE_P(Host, TableContract,
                         testing::ValuesIn(WithEveryStorage({{"Host", [] { return std::make_unique<HostHome>(); }}})),
                         testing::PrintToStringParamName());

TEST(HostTable, AFullBudgetRefusesNewRowsAndCreatesNone) {
  MemoryBudget budget(200'000);
  const auto table = MakeHostTable(TestSpec("big", 8, SparseOptimizerKind::kAdagrad), &budget);
  const std::vector<Key> known = KeysFrom(0, 500);
  std::vector<float> rows(500 * 8);
  ASSERT_TRUE(table->Pull(known, PullMode::kCreate, rows).ok());
  std::vector<Key> many = KeysFrom(400, 10'000);  // A hundred of them are there.
  std::vector<float> many_rows(many.size() * 8);
  const absl::Status status = table->Pull(many, PullMode::kCreate, many_rows);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("\"big\""), testing::HasSubstr("200000 bytes")));
  EXPECT_EQ(table->Stats().rows, 500u);
  EXPECT_LE(budget.used(), 200'000);
  std::vector<float> again(500 * 8);
  ASSERT_TRUE(table->Pull(known, PullMode::kCreate, again).ok());
  EXPECT_EQ(again, rows);
}

TEST(HostTable, AnUpdateThatDoesNotFitChangesNoRow) {
  MemoryBudget budget(100'000);
  const auto table = MakeHostTable(TestSpec("big", 8, SparseOptimizerKind::kAdam), &budget);
  const std::vector<Key> known = KeysFrom(0, 300);
  std::vector<float> floats(300 * 8, 1.0f);
  ASSERT_TRUE(table->Apply(known, floats, {}).ok());
  const absl::StatusOr<Records> before = ExportAll(table.get());
  const std::vector<Key> many = KeysFrom(0, 5'000);
  EXPECT_EQ(table->Apply(many, std::vector<float>(many.size() * 8, 1.0f), {}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*ExportAll(table.get()), *before);
}

TEST(HostTable, RowsFitUntilTheBudgetIsFull) {
  constexpr uint64_t kBudget = 4 << 20;
  MemoryBudget budget(kBudget);
  const auto table = MakeHostTable(TestSpec("t", 16, SparseOptimizerKind::kRowwiseAdagrad), &budget);
  absl::Status status;
  Key key = 0;
  std::vector<float> row(16);
  while (status.ok()) {
    const Key next = key++;
    status = table->Pull(std::span(&next, 1), PullMode::kCreate, row);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(budget.used(), static_cast<int64_t>(kBudget));
  // 96 bytes a slot; the index may be between three eighths and three quarters full, and half of the last doubling
  // lost.
  EXPECT_GT(table->Stats().rows, kBudget / (96 + 2 * 43));
  EXPECT_EQ(static_cast<uint64_t>(budget.used()), table->Stats().dram_bytes);
}

TEST(HostTable, AClosedTableReturnsItsMemory) {
  MemoryBudget budget(1 << 24);
  {
    const auto table = MakeHostTable(TestSpec("t", 16, SparseOptimizerKind::kSgd), &budget);
    const std::vector<Key> keys = KeysFrom(0, 1000);
    std::vector<float> rows(16'000);
    ASSERT_TRUE(table->Pull(keys, PullMode::kCreate, rows).ok());
    EXPECT_GT(budget.used(), 80'000);
  }
  EXPECT_EQ(budget.used(), 0);
}

}  // namespace
}  // namespace sparrow
