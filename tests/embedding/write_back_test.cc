#include "embedding/write_back.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/support/fake_cold_store.h"
#include "tests/support/row_model.h"
#include "tests/support/table_inputs.h"
#include "tests/support/table_specs.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

TEST(WriteBack, RowsAreWrittenInTheBackgroundOnceATableEvicts) {
  constexpr uint32_t kDim = 16;
  TemporaryDirectory directory;
  MemoryBudget budget(16 << 20);
  const auto cold = ColdStore::Create(directory.File("cold")).value();
  const TableSpec spec = TestSpec("t", kDim, SparseOptimizerKind::kAdam);
  const auto table = MakeTieredTable(spec, &budget, cold.get()).value();
  RowModel model(spec);
  std::vector<float> rows(200 * kDim);
  EXPECT_EQ(table->Stats().written_in_background, 0u);
  Key next = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (table->Stats().written_in_background < 1'000 && absl::Now() < deadline) {
    ASSERT_TRUE(table->Pull(KeysFrom(next, 200), PullMode::kCreate, rows).ok());
    model.Pull(KeysFrom(next, 200), PullMode::kCreate);
    next += 200;
  }
  const TableStats stats = table->Stats();
  EXPECT_GE(stats.written_in_background, 1'000u);
  EXPECT_GE(stats.written_in_background + stats.written_in_line, stats.evictions);
  EXPECT_EQ(stats.rows, next);
  EXPECT_EQ(*ExportAll(table.get()), model.records());
}

// A cold store in memory whose reads, or writes, wait if they come from a thread other than the one that made it.
class GatedColdStore final : public ColdStore {
 public:
  absl::StatusOr<std::unique_ptr<ColdTable>> OpenTable(const std::string& name, uint64_t record_bytes) override {
    return std::make_unique<Gated>(this, inner_.OpenTable(name, record_bytes).value());
  }
  absl::Status CheckRoom(uint64_t rows_bytes) override { return inner_.CheckRoom(rows_bytes); }

  void CloseGate() { Set(&writes_go_, false); }
  void OpenGate() { Set(&writes_go_, true); }
  void HoldReads() { Set(&reads_go_, false); }
  void LetReadsGo() { Set(&reads_go_, true); }
  void FailWrites(double probability) { faults_.FailWrites(probability); }
  uint64_t failures() const { return faults_.failures(); }
  bool IsWaiting() {
    absl::MutexLock lock(&mu_);
    return waiting_;
  }

 private:
  class Gated final : public ColdTable {
   public:
    Gated(GatedColdStore* store, std::unique_ptr<ColdTable> inner) : store_(store), inner_(std::move(inner)) {}
    absl::Status Read(std::span<const Key> keys, std::span<char> records, std::span<uint8_t> found) const override {
      const absl::Status status = inner_->Read(keys, records, found);
      store_->WaitUntil(&store_->reads_go_);
      return status;
    }
    absl::Status Write(std::span<const Key> keys, std::span<const char* const> records) override {
      store_->WaitUntil(&store_->writes_go_);
      return inner_->Write(keys, records);
    }
    absl::Status Erase(std::span<const Key> keys) override { return inner_->Erase(keys); }
    absl::Status Scan(uint32_t bucket_begin, uint32_t bucket_end,
                      absl::FunctionRef<absl::Status(Key, absl::string_view)> visit) const override {
      return inner_->Scan(bucket_begin, bucket_end, visit);
    }
    uint64_t FileBytes() const override { return inner_->FileBytes(); }

   private:
    GatedColdStore* const store_;
    const std::unique_ptr<ColdTable> inner_;
  };

  void WaitUntil(const bool* go) {
    if (std::this_thread::get_id() == foreground_) return;
    absl::MutexLock lock(&mu_);
    waiting_ = !*go;
    mu_.Await(absl::Condition(go));
    waiting_ = false;
  }
  void Set(bool* what, bool value) {
    absl::MutexLock lock(&mu_);
    *what = value;
  }

  const std::thread::id foreground_ = std::this_thread::get_id();
  Faults faults_;
  FakeColdStore inner_{&faults_};
  absl::Mutex mu_;
  bool writes_go_ = true, reads_go_ = true;
  bool waiting_ = false;
};

constexpr TieredOptions kEager = {.background_rows_min = 8};  // The background thread writes for few rows, too.

// A table with the background thread held in the middle of a write.
class WriteBackHeld : public testing::Test {
 protected:
  static constexpr uint32_t kDim = 8;
  static constexpr size_t kBatch = 100;
  static constexpr Key kRowsMin = 6'000;

  void Make(const TableSpec& spec) {
    spec_ = spec;
    table_ = MakeTieredTable(spec, &budget_, &cold_, kEager).value();
    model_ = std::make_unique<RowModel>(spec);
  }
  void Apply(const std::vector<Key>& keys, uint64_t step) {
    const std::vector<float> gradients = RandomFloats(keys.size() * kDim, 1, &random_);
    ASSERT_TRUE(table_->Apply(keys, gradients, {.step = step}).ok());
    model_->Apply(keys, gradients, {.step = step});
  }
  // New rows until the thread waits in its write, and more than the budget holds.
  void ApplyUntilHeld(uint64_t step) {
    cold_.CloseGate();
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    for (; (next_ < kRowsMin || !cold_.IsWaiting()) && absl::Now() < deadline; next_ += kBatch) {
      Apply(KeysFrom(next_, kBatch), step);
    }
    ASSERT_TRUE(cold_.IsWaiting());
  }
  bool WaitFor(absl::FunctionRef<bool()> is_so) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (!is_so() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    return is_so();
  }

  GatedColdStore cold_;
  MemoryBudget budget_{256 << 10};
  TableSpec spec_;
  std::unique_ptr<Table> table_;
  std::unique_ptr<RowModel> model_;
  std::mt19937_64 random_{5};
  Key next_ = 0;
};

TEST_F(WriteBackHeld, CallsWriteInLineMeanwhileAndNoUpdateIsLost) {
  Make(TestSpec("t", kDim, SparseOptimizerKind::kAdagrad));
  ApplyUntilHeld(1);
  const TableStats before = table_->Stats();
  for (uint64_t step = 2; step < 5; ++step) {  // Of all rows, those that are being written among them.
    for (Key first = 0; first < next_; first += kBatch) Apply(KeysFrom(first, kBatch), step);
  }
  const TableStats held = table_->Stats();
  EXPECT_EQ(held.written_in_background, before.written_in_background);
  EXPECT_GT(held.written_in_line, before.written_in_line + next_);  // Back-pressure.
  cold_.OpenGate();
  EXPECT_TRUE(WaitFor([&] { return table_->Stats().written_in_background > held.written_in_background; }));
  EXPECT_EQ(*ExportAll(table_.get()), model_->records());
  for (Key first = 0; first < next_; first += kBatch) Apply(KeysFrom(first, kBatch), 5);
  EXPECT_EQ(*ExportAll(table_.get()), model_->records());
  EXPECT_EQ(table_->Stats().rows, next_);
}

TEST_F(WriteBackHeld, AWriteThatFailsInTheBackgroundLosesNothingAndTheNextSucceeds) {
  Make(TestSpec("t", kDim, SparseOptimizerKind::kAdagrad));
  ApplyUntilHeld(1);
  const TableStats before = table_->Stats();
  cold_.FailWrites(1);
  cold_.OpenGate();
  ASSERT_TRUE(WaitFor([&] { return cold_.failures() > 0; }));
  cold_.FailWrites(0);
  EXPECT_EQ(*ExportAll(table_.get()), model_->records());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (table_->Stats().written_in_background == before.written_in_background && absl::Now() < deadline) {
    Apply(KeysFrom(next_, kBatch), 2);
    next_ += kBatch;
  }
  EXPECT_GT(table_->Stats().written_in_background, before.written_in_background);
  EXPECT_EQ(*ExportAll(table_.get()), model_->records());
}

TEST_F(WriteBackHeld, ARowThatIsForgottenWhileItIsWrittenStaysForgotten) {
  TableSpec spec = TestSpec("t", kDim, SparseOptimizerKind::kAdagrad);
  spec.eviction.ttl_steps = 1;
  Make(spec);
  ApplyUntilHeld(1);
  std::thread ender([&] {
    for (uint64_t step = 1; step <= 3; ++step) ASSERT_TRUE(table_->EndStep(step).ok());
  });
  EXPECT_GT(table_->Stats().rows, 0u);
  cold_.OpenGate();
  ender.join();
  EXPECT_EQ(table_->Stats().rows, 0u);
  EXPECT_EQ(table_->Stats().disk_rows, 0u);
  EXPECT_TRUE(ExportAll(table_.get())->empty());
}

// Found missing by one call, a row may come in and be updated by another, and leave again for room that the first
// needs.
TEST_F(WriteBackHeld, ARowThatCameInWhileACallReadAndLeavesForThatCallsRoomKeepsItsUpdates) {
  budget_.Add(256 << 10);  // One row a stripe.
  Make(TestSpec("t", kDim, SparseOptimizerKind::kAdagrad));
  std::vector<Key> of_stripe;
  for (Key key = 0; of_stripe.size() < 4; ++key) {
    if (RowIndex::Hash(key) % 256 == 0) of_stripe.push_back(key);
  }
  for (const Key key : of_stripe) Apply({key}, 1);
  const Key row = of_stripe[0], other = of_stripe[1], clean = of_stripe[2];
  // In memory, as it is on disk: to evict it writes nothing.
  std::vector<float> rows(kDim);
  ASSERT_TRUE(table_->Pull(std::vector<Key>{clean}, PullMode::kCreate, rows).ok());
  cold_.HoldReads();
  const std::vector<float> gradients = RandomFloats(2 * kDim, 1, &random_);
  std::thread first([&] { ASSERT_TRUE(table_->Apply(std::vector<Key>{other, row}, gradients, {.step = 3}).ok()); });
  ASSERT_TRUE(WaitFor([&] { return cold_.IsWaiting(); }));
  Apply({row}, 2);
  cold_.LetReadsGo();
  first.join();
  model_->Apply(std::vector<Key>{other, row}, gradients, {.step = 3});
  EXPECT_EQ(*ExportAll(table_.get()), model_->records());
  budget_.Add(-(256 << 10));
}

TEST_F(WriteBackHeld, ATableThatGoesWaitsForItsWrite) {
  Make(TestSpec("t", kDim, SparseOptimizerKind::kAdagrad));
  ApplyUntilHeld(1);
  std::atomic<bool> is_gone{false};
  std::thread closer([&] {
    table_.reset();
    is_gone = true;
  });
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(is_gone);
  cold_.OpenGate();
  closer.join();
}

}  // namespace
}  // namespace sparrow
