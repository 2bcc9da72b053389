// Millions of seeded random operations on tables and on their model, an unordered_map of records with the same row
// arithmetic. Few keys and budgets of a few rows, so that rows are evicted and come back all the time; two tables share
// a budget that grows and shrinks; tables are restarted from their export into another kind of table; and the cold
// tier fails now and then, reads and writes, as a failing or full disk does. The background thread writes for stripes
// of a few rows, or not at all.
//
// After an operation that failed, every row that it named must be one of what table.h allows (whole, before or after),
// and every other row what it was.
//
// SPARROW_TEST_SEED repeats a run, but for when the background thread writes; SPARROW_TEST_OPERATIONS makes it longer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <unordered_map>
#include <unordered_set>

#include "embedding/table.h"
#include "tests/support/fake_cold_store.h"
#include "tests/support/row_model.h"
#include "tests/support/table_specs.h"

namespace sparrow {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const given = std::getenv(name);
  return given != nullptr ? std::strtoull(given, nullptr, 10) : otherwise;
}

#ifdef NDEBUG
constexpr uint64_t kOperations = 2'000'000;
#else
constexpr uint64_t kOperations = 150'000;
#endif
constexpr uint64_t kOperationsASession = 25'000;

// One table and its model.
class Checked {
 public:
  Checked(TableSpec spec, std::mt19937_64* random)
      : spec_(std::move(spec)), layout_(spec_.Layout()), random_(*random) {}

  std::unique_ptr<Table> table;

  const TableSpec& spec() const { return spec_; }
  uint64_t rows() const { return records_.size(); }

  // Each returns whether the operation succeeded; a failure is checked later, by CheckAfterFailure.
  bool Pull();
  bool Apply();
  bool Import();

  // The whole table equals the model.
  void CheckAll() {
    const absl::StatusOr<Records> exported = ExportAll(table.get());
    ASSERT_TRUE(exported.ok()) << exported.status();
    ASSERT_EQ(exported->size(), records_.size());
    for (const auto& [at, record] : *exported) {
      const auto model = records_.find(at.second);
      ASSERT_TRUE(model != records_.end()) << "key " << at.second << " is in the table alone";
      ASSERT_TRUE(model->second == record) << "key " << at.second;
    }
    ASSERT_EQ(table->Stats().rows, records_.size());
  }

  // The same, where each row of the failed operation may be as before or as after it; the model becomes what it is.
  void CheckAfterFailure(bool is_tiered);

  absl::Status CopyTo(Table* to) {
    return table->Export([&](Key key, absl::string_view record) { return to->Import(key, record); });
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }

  // A few hot keys, many cold ones.
  Key RandomKey() { return RandomBits(1, Below(4) == 0 ? Below(1'500) : Below(60)); }

  const std::vector<Key>& RandomKeys() {
    keys_.clear();
    for (uint64_t n = Below(9); n > 0; --n) {
      const Key key = RandomKey();
      if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) keys_.push_back(key);
    }
    return keys_;
  }

  std::string Initial(Key key) const {
    std::string record(layout_.record_bytes(), '\0');
    InitRowCpu(spec_, key, record.data());
    return record;
  }
  std::string& Row(Key key) {
    const auto found = records_.find(key);
    return found != records_.end() ? found->second : records_.emplace(key, Initial(key)).first->second;
  }

  // What a row of the failed operation may be; no value: absent.
  void MayBe(Key key, std::optional<std::string> record) { allowed_[key].push_back(std::move(record)); }
  void MayBeAsBefore(Key key) {
    const auto found = records_.find(key);
    MayBe(key, found != records_.end() ? std::optional(found->second) : std::nullopt);
  }

  const TableSpec spec_;
  const RowLayout layout_;
  std::mt19937_64& random_;
  std::unordered_map<Key, std::string> records_;
  std::unordered_map<Key, std::vector<std::optional<std::string>>> allowed_;
  std::vector<Key> keys_;
  std::vector<float> floats_, expected_;
};

bool Checked::Pull() {
  const std::vector<Key>& keys = RandomKeys();
  const PullMode mode = Below(3) == 0 ? PullMode::kLook : PullMode::kCreate;
  floats_.assign(keys.size() * spec_.dim, -1);
  const absl::Status status = table->Pull(keys, mode, floats_);
  if (!status.ok()) {
    for (const Key key : keys) {
      MayBeAsBefore(key);
      if (mode == PullMode::kCreate && records_.count(key) == 0) MayBe(key, Initial(key));
    }
    return false;
  }
  expected_.resize(floats_.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto found = records_.find(keys[i]);
    const std::string record = found != records_.end() ? found->second : Initial(keys[i]);
    LoadWeights(layout_, record.data(), expected_.data() + i * spec_.dim);
    if (mode == PullMode::kCreate && found == records_.end()) records_.emplace(keys[i], record);
  }
  EXPECT_EQ(floats_, expected_);
  return true;
}

bool Checked::Apply() {
  const std::vector<Key>& keys = RandomKeys();
  floats_.resize(keys.size() * spec_.dim);
  for (float& g : floats_) g = static_cast<float>(static_cast<double>(random_() >> 40) * 0x1p-23 - 1);
  const ApplyOptions options = {.gradient_scale = 0.25 * static_cast<double>(1 + Below(4)),
                                .learning_rate_factor = 0.5 * static_cast<double>(Below(3)),
                                .step = random_()};
  const absl::Status status = table->Apply(keys, floats_, options);
  const RowUpdate update(spec_, options);
  for (size_t i = 0; i < keys.size(); ++i) {
    const float* const gradient = floats_.data() + i * spec_.dim;
    if (status.ok()) {
      update(keys[i], gradient, Row(keys[i]).data());
      continue;
    }
    const auto found = records_.find(keys[i]);
    std::string updated = found != records_.end() ? found->second : Initial(keys[i]);
    MayBeAsBefore(keys[i]);
    if (found == records_.end()) MayBe(keys[i], updated);
    update(keys[i], gradient, updated.data());
    MayBe(keys[i], std::move(updated));
  }
  return status.ok();
}

bool Checked::Import() {
  const Key key = RandomKey();
  const std::string record = Initial(Below(100));
  if (!table->Import(key, record).ok()) {
    MayBeAsBefore(key);
    MayBe(key, record);
    return false;
  }
  records_[key] = record;
  return true;
}

void Checked::CheckAfterFailure(bool is_tiered) {
  const absl::StatusOr<Records> exported = ExportAll(table.get());
  ASSERT_TRUE(exported.ok()) << exported.status();
  std::unordered_set<Key> seen;
  for (const auto& [at, record] : *exported) {
    const auto allowed = allowed_.find(at.second);
    if (allowed == allowed_.end()) {
      const auto model = records_.find(at.second);
      ASSERT_TRUE(model != records_.end()) << "key " << at.second << " is in the table alone";
      ASSERT_TRUE(model->second == record) << "key " << at.second << " was not in the operation that failed";
      continue;
    }
    const std::optional<std::string> found = record;
    // The first is the row before the operation: without a cold tier a failure (no memory) changes nothing.
    ASSERT_TRUE(is_tiered ? testing::Matches(testing::Contains(found))(allowed->second) : allowed->second[0] == found)
        << "key " << at.second << " is none of what a failure may leave";
    seen.insert(at.second);
    records_[at.second] = record;
  }
  for (const auto& [key, allowed] : allowed_) {
    if (seen.count(key) != 0) continue;
    ASSERT_TRUE(allowed[0] == std::nullopt) << "key " << key << " is lost";
  }
  ASSERT_EQ(records_.size(), exported->size()) << "rows outside the operation are lost";
  ASSERT_EQ(table->Stats().rows, records_.size());
  allowed_.clear();
}

// A server's life: two tables, one budget, one cold tier.
class Session {
 public:
  explicit Session(uint64_t seed) : random_(seed), faults_(seed) {
    constexpr RowType kStorages[] = {RowType::kFloat32, RowType::kBfloat16, RowType::kFloat16};
    for (int t = 0; t < 2; ++t) {
      TableSpec spec = TestSpec("t" + std::to_string(t), static_cast<uint32_t>(1 + Below(9)),
                                kAllOptimizers[Below(kAllOptimizers.size())]);
      spec.storage = kStorages[Below(3)];
      tables_.push_back(std::make_unique<Checked>(spec, &random_));
    }
    faulty_ = Below(2) == 0;
    NewLife();
    for (const auto& checked : tables_) checked->table = Make(checked->spec());
  }
  ~Session() {
    for (const auto& checked : tables_) checked->table.reset();
  }

  void Run(uint64_t operations) {
    for (uint64_t i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "operation " << i);
      One();
    }
    if (testing::Test::HasFailure()) return;
    for (const auto& checked : tables_) {
      checked->CheckAll();
      Count(*checked->table);
    }
  }

  uint64_t evictions() const { return evictions_; }
  uint64_t written_in_background() const { return written_in_background_; }
  uint64_t failures() const { return failed_; }
  uint64_t restarts() const { return restarts_; }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }

  void Count(const Table& table) {
    const TableStats stats = table.Stats();
    evictions_ += stats.evictions;
    written_in_background_ += stats.written_in_background;
  }

  // A budget of a few rows a stripe, or of none, or of plenty; with or without a cold tier.
  void NewLife() {
    is_tiered_ = Below(5) != 0;
    constexpr uint64_t kBudgets[] = {1, 24 << 10, 64 << 10};
    bytes_max_ = is_tiered_ ? kBudgets[Below(3)] : (uint64_t{160} << 10) * (Below(3) == 0 ? 1 : 400);
    budget_ = std::make_unique<MemoryBudget>(bytes_max_);
    cold_ = std::make_unique<FakeColdStore>(&faults_);
    options_.background_rows_min = Below(4) == 0 ? TieredOptions::kInLineOnly : 8;
    taken_ = 0;
  }
  std::unique_ptr<Table> Make(const TableSpec& spec) {
    return is_tiered_ ? MakeTieredTable(spec, budget_.get(), cold_.get(), options_).value()
                      : MakeHostTable(spec, budget_.get());
  }

  void One() {
    Checked& checked = *tables_[Below(2)];
    const uint64_t kind = Below(10'000);
    if (kind == 0) return Restart();
    if (kind < 6) return checked.CheckAll();
    if (kind < 16) return ChangeBudget();
    // Failures come in bursts: a disk that is full stays so for a while.
    if (faulty_ && kind < 40) burst_ = Below(20);
    if (burst_ > 0) {
      --burst_;
      faults_.FailReads(0.3);
      faults_.FailWrites(0.6);
    }
    const bool succeeded = kind < 300 ? checked.Import() : kind < 5'000 ? checked.Pull() : checked.Apply();
    faults_.Stop();
    if (succeeded) return;
    ++failed_;
    checked.CheckAfterFailure(is_tiered_);
  }

  // Something else takes a part of the memory, or gives it back.
  void ChangeBudget() {
    budget_->Add(-taken_);
    taken_ = static_cast<int64_t>(Below(2) == 0 ? Below(bytes_max_ / 2 + 1) : 0);
    budget_->Add(taken_);
  }

  void Restart() {
    const auto old_budget = std::move(budget_);
    const auto old_cold = std::move(cold_);
    NewLife();
    if (!is_tiered_) {  // Everything must fit.
      budget_ = std::make_unique<MemoryBudget>(bytes_max_ = 64 << 20);
    }
    for (const auto& checked : tables_) {
      std::unique_ptr<Table> next = Make(checked->spec());
      const absl::Status copied = checked->CopyTo(next.get());
      ASSERT_TRUE(copied.ok()) << copied;
      Count(*checked->table);
      checked->table = std::move(next);
      checked->CheckAll();
    }
    ++restarts_;
  }

  std::mt19937_64 random_;
  Faults faults_;
  bool faulty_ = false;
  bool is_tiered_ = true;
  TieredOptions options_;
  uint64_t bytes_max_ = 0;
  int64_t taken_ = 0;
  uint64_t burst_ = 0;
  std::unique_ptr<MemoryBudget> budget_;
  std::unique_ptr<FakeColdStore> cold_;
  std::vector<std::unique_ptr<Checked>> tables_;
  uint64_t evictions_ = 0, written_in_background_ = 0, failed_ = 0, restarts_ = 0;
};

TEST(ModelChecker, TablesEqualTheirModelThroughEvictionsRestartsAndFaults) {
  const uint64_t seed = FromEnvironment("SPARROW_TEST_SEED", 20'261'129);
  const uint64_t operations = FromEnvironment("SPARROW_TEST_OPERATIONS", kOperations);
  std::cout << "SPARROW_TEST_SEED=" << seed << " SPARROW_TEST_OPERATIONS=" << operations << "\n";
  uint64_t evictions = 0, written_in_background = 0, failures = 0, restarts = 0;
  for (uint64_t done = 0, number = 0; done < operations; done += kOperationsASession, ++number) {
    SCOPED_TRACE(testing::Message() << "session " << number);
    Session session(RandomBits(seed, number));
    session.Run(std::min(kOperationsASession, operations - done));
    if (HasFailure()) return;
    evictions += session.evictions();
    written_in_background += session.written_in_background();
    failures += session.failures();
    restarts += session.restarts();
  }
  std::cout << evictions << " evictions, " << written_in_background << " rows written in the background, " << failures
            << " failed operations, " << restarts << " restarts\n";
  EXPECT_GT(evictions, operations / 10);
  EXPECT_GT(written_in_background, operations / 100);
  EXPECT_GT(failures, operations / 10'000);
  EXPECT_GT(restarts, operations / 100'000);
}

}  // namespace
}  // namespace sparrow
