#include "embedding/memory_budget.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

class FakeHolder final : public MemoryBudget::Holder {
 public:
  FakeHolder(uint64_t held, MemoryBudget* budget) : held_(held), budget_(budget) { budget_->Register(this); }
  ~FakeHolder() override { budget_->Unregister(this); }
  uint64_t HeldBytes() const override { return held_; }
  void GiveBack(uint64_t bytes) override { given_ += bytes; }
  uint64_t given() const { return given_; }

 private:
  const uint64_t held_;
  MemoryBudget* const budget_;
  uint64_t given_ = 0;
};

TEST(MemoryBudget, GivesWholeUnitsUntilItIsFull) {
  MemoryBudget budget(100);
  EXPECT_EQ(budget.TakeUpTo(3, 30), 3u);
  EXPECT_EQ(budget.TakeUpTo(3, 30), 0u);
  EXPECT_EQ(budget.TakeUpTo(30, 1), 10u);
  EXPECT_FALSE(budget.Over());
  budget.Add(1);
  EXPECT_TRUE(budget.Over());
  EXPECT_EQ(budget.TakeUpTo(1, 1), 0u);
  budget.Add(-101);
  EXPECT_EQ(budget.used(), 0);
}

TEST(MemoryBudget, AsksTheLargestOtherHolderIfItHoldsMuchMore) {
  MemoryBudget budget(10'000);
  FakeHolder small(1'000, &budget), middle(3'000, &budget), large(6'400, &budget);
  budget.AskLargest(&small);
  EXPECT_EQ(large.given(), 200u);  // A thirty-second.
  budget.AskLargest(&large);
  EXPECT_EQ(middle.given(), 0u);
  FakeHolder nearly(5'800, &budget);
  budget.AskLargest(&nearly);
  EXPECT_EQ(large.given(), 200u);
  EXPECT_EQ(small.given() + middle.given(), 0u);
}

}  // namespace
}  // namespace sparrow
