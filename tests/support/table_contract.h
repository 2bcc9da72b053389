#ifndef SPARROW_TESTS_SUPPORT_TABLE_CONTRACT_H_
#define SPARROW_TESTS_SUPPORT_TABLE_CONTRACT_H_

// What every table promises (embedding/table.h), as one suite. A test of a kind of table instantiates it:
//   INSTANTIATE_TEST_SUITE_P(Host, TableContract, testing::ValuesIn(WithEveryStorage({{"Host", ...}})),
//                            testing::PrintToStringParamName());

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "embedding/table.h"
#include "tests/support/edge_keys.h"
#include "tests/support/row_model.h"
#include "tests/support/table_inputs.h"
#include "tests/support/table_specs.h"

namespace sparrow {

// Where tables of one kind live: their budget, their disk. Outlives its tables.
class TableHome {
 public:
  virtual ~TableHome() = default;
  virtual std::unique_ptr<Table> Make(TableSpec spec) = 0;
};

struct TableKind {
  std::string name;
  std::function<std::unique_ptr<TableHome>()> make_home;
  RowType storage = RowType::kFloat32;
  friend std::ostream& operator<<(std::ostream& out, const TableKind& kind) { return out << kind.name; }
};

inline std::vector<TableKind> WithEveryStorage(const std::vector<TableKind>& kinds) {
  std::vector<TableKind> all = kinds;
  for (const TableKind& kind : kinds) {
    all.push_back({kind.name + "Bfloat16", kind.make_home, RowType::kBfloat16});
    all.push_back({kind.name + "Float16", kind.make_home, RowType::kFloat16});
  }
  return all;
}

class TableContract : public testing::TestWithParam<TableKind> {
 protected:
  void SetUp() override { home_ = GetParam().make_home(); }

  // Hides sparrow::TestSpec, so that every test here is of the storage it runs for.
  static TableSpec TestSpec(std::string name, uint32_t dim, SparseOptimizerKind kind, uint64_t bounded_rows = 0) {
    TableSpec spec = sparrow::TestSpec(std::move(name), dim, kind, bounded_rows);
    spec.storage = GetParam().storage;
    return spec;
  }
  // How far one rounding of a number of this magnitude may be off.
  static double Unit(double magnitude) {
    switch (GetParam().storage) {
      case RowType::kBfloat16:
        return std::max(std::fabs(magnitude), 0x1p-126) * 0x1p-7;
      case RowType::kFloat16:
        return std::max(std::fabs(magnitude), 0x1p-14) * 0x1p-10;
      default:
        return 0;
    }
  }

  std::unique_ptr<Table> Make(TableSpec spec) { return home_->Make(std::move(spec)); }

  static std::vector<float> MustPull(Table* table, std::span<const Key> keys, PullMode mode = PullMode::kCreate) {
    std::vector<float> rows(keys.size() * table->dim(), std::numeric_limits<float>::quiet_NaN());
    const absl::Status status = table->Pull(keys, mode, rows);
    EXPECT_TRUE(status.ok()) << status;
    return rows;
  }
  static void MustApply(Table* table, std::span<const Key> keys, std::span<const float> gradients,
                        const ApplyOptions& options = {}) {
    const absl::Status status = table->Apply(keys, gradients, options);
    ASSERT_TRUE(status.ok()) << status;
  }
  static Records MustExport(Table* table) {
    absl::StatusOr<Records> records = ExportAll(table);
    EXPECT_TRUE(records.ok()) << records.status();
    return records.ok() ? *records : Records();
  }

  std::unique_ptr<TableHome> home_;
};

TEST_P(TableContract, AbsentRowsHaveTheInitialValueOfTheirKey) {
  const TableSpec spec = TestSpec("t", 3, SparseOptimizerKind::kAdagrad);
  const auto table = Make(spec);
  const std::vector<Key> keys = ScatteredKeys(500, 1);
  const std::vector<float> rows = MustPull(table.get(), keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    for (uint32_t column = 0; column < 3; ++column) {
      const uint64_t row_seed = RandomBits(spec.seed, keys[i]);
      const float expected = static_cast<float>(0.25 * (2 * RandomUniform(row_seed, column) - 1));
      ASSERT_NEAR(rows[3 * i + column], expected, Unit(expected));
    }
  }
  EXPECT_EQ(table->Stats().rows, keys.size());
}

TEST_P(TableContract, LookingCreatesNothingAndMovesNothing) {
  const auto table = Make(TestSpec("t", 5, SparseOptimizerKind::kAdam));
  const std::vector<Key> known = ScatteredKeys(300, 1), unknown = ScatteredKeys(300, 2);
  std::mt19937_64 random(3);
  MustApply(table.get(), known, RandomFloats(known.size() * 5, 1, &random));
  const Records before = MustExport(table.get());
  const TableStats stats = table->Stats();
  const std::vector<float> looked = MustPull(table.get(), unknown, PullMode::kLook);
  const std::vector<float> known_rows = MustPull(table.get(), known, PullMode::kLook);
  EXPECT_EQ(table->Stats().rows, stats.rows);
  EXPECT_EQ(table->Stats().dram_rows, stats.dram_rows);
  EXPECT_EQ(table->Stats().evictions, stats.evictions);
  EXPECT_EQ(MustExport(table.get()), before);
  EXPECT_EQ(looked, MustPull(table.get(), unknown));
  EXPECT_EQ(known_rows, MustPull(table.get(), known));
}

TEST_P(TableContract, EveryOptimizerUpdatesRowsLikeTheModelBitForBit) {
  for (const SparseOptimizerKind kind : kAllOptimizers) {
    SCOPED_TRACE(static_cast<int>(kind));
    const TableSpec spec = TestSpec("t" + std::to_string(static_cast<int>(kind)), 6, kind);
    const auto table = Make(spec);
    RowModel model(spec);
    std::mt19937_64 random(17);
    for (uint64_t step = 1; step <= 4; ++step) {
      std::vector<Key> keys = ScatteredKeys(200, 1);
      std::shuffle(keys.begin(), keys.end(), random);
      keys.resize(120);
      ASSERT_EQ(MustPull(table.get(), keys), model.Pull(keys, PullMode::kCreate));
      const std::vector<float> gradients = RandomFloats(keys.size() * 6, 2, &random);
      const ApplyOptions options = {
          .gradient_scale = 0.5 / static_cast<double>(step), .learning_rate_factor = 1.0 / step, .step = step};
      MustApply(table.get(), keys, gradients, options);
      model.Apply(keys, gradients, options);
    }
    EXPECT_EQ(MustExport(table.get()), model.records());
  }
}

TEST_P(TableContract, AnyBitPatternIsAKey) {
  const TableSpec spec = TestSpec("t", 4, SparseOptimizerKind::kAdam);
  const auto table = Make(spec);
  const std::vector<Key> keys = AwkwardKeys();
  RowModel model(spec);
  std::mt19937_64 random(5);
  const std::vector<float> gradients = RandomFloats(keys.size() * 4, 1, &random);
  MustApply(table.get(), keys, gradients);
  model.Apply(keys, gradients, {});
  EXPECT_EQ(MustPull(table.get(), keys), model.Pull(keys, PullMode::kCreate));
  EXPECT_EQ(MustExport(table.get()), model.records());
}

TEST_P(TableContract, WideKeysDoNotAliasNarrowOnes) {
  const auto table = Make(TestSpec("t", 4, SparseOptimizerKind::kSgd));
  const std::vector<Key> five = {5}, wide = {(uint64_t{1} << 32) + 5, uint64_t{1} << 31};
  const std::vector<float> before = MustPull(table.get(), five);
  const std::vector<float> wide_before = MustPull(table.get(), wide);
  MustApply(table.get(), wide, std::vector<float>(8, 1.0f));
  EXPECT_EQ(MustPull(table.get(), five), before);
  EXPECT_NE(MustPull(table.get(), wide), wide_before);
  EXPECT_EQ(table->Stats().rows, 3u);

  const auto bounded = Make(TestSpec("b", 4, SparseOptimizerKind::kSgd, 10));
  const std::vector<float> row = MustPull(bounded.get(), five);
  for (const Key key : wide) {
    std::vector<float> out(4, 1.0f);
    EXPECT_EQ(bounded->Pull(std::span(&key, 1), PullMode::kCreate, out).code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(bounded->Apply(std::span(&key, 1), out, {}).code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(MustPull(bounded.get(), five), row);
}

// Against formulas written here, in double. Dims that are no multiple of a vector, or larger than a block, on equal
// terms.
TEST_P(TableContract, AnyDimensionEqualsAScalarReferenceAndSurvivesASave) {
  for (const uint32_t dim : {1u, 2u, 3u, 5u, 10u, 13u, 16u, 128u, 1024u, 1028u, 2048u, 4096u}) {
    SCOPED_TRACE(dim);
    TableSpec spec = TestSpec("t" + std::to_string(dim), dim, SparseOptimizerKind::kAdagrad);
    const auto table = Make(spec);
    const std::vector<Key> keys = {1, 2, 3, uint64_t{1} << 40};
    std::mt19937_64 random(dim);
    const std::vector<float> initial = MustPull(table.get(), keys);
    const std::vector<float> gradients = RandomFloats(keys.size() * dim, 3, &random);
    MustApply(table.get(), keys, gradients, {.gradient_scale = 0.5, .learning_rate_factor = 2});
    const std::vector<float> rows = MustPull(table.get(), keys);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double g = 0.5 * gradients[i];
      const double expected = initial[i] - 2 * 0.13 * g / (std::sqrt(0.3 + g * g) + 1e-3);
      ASSERT_NEAR(rows[i], expected, 1e-6 + Unit(expected)) << i;
    }
    const Records saved = MustExport(table.get());
    spec.name += "restored";
    const auto restored = Make(spec);
    for (const auto& [at, record] : saved) {
      // Weights, state, metadata; padding only to the next 4 bytes.
      const uint32_t weight_bytes = GetParam().storage == RowType::kFloat32 ? 4 * dim : 2 * (dim + dim % 2);
      ASSERT_EQ(record.size(), weight_bytes + 4 * dim + 16);
      ASSERT_TRUE(restored->Import(at.second, record).ok());
    }
    EXPECT_EQ(MustPull(restored.get(), keys), rows);
    EXPECT_EQ(MustExport(restored.get()), saved);
  }
}

// Each table's arithmetic and storage are its own, whatever lives beside it.
TEST_P(TableContract, TablesOfSeveralDimensionsTrainAsEachAlone) {
  const std::vector<uint32_t> dims = {4, 16, 64};
  std::vector<std::unique_ptr<Table>> together;
  std::vector<RowModel> alone;
  for (const uint32_t dim : dims) {
    const TableSpec spec = TestSpec("dim" + std::to_string(dim), dim, SparseOptimizerKind::kAdam);
    together.push_back(Make(spec));
    alone.emplace_back(spec);
  }
  std::mt19937_64 random(8);
  for (uint64_t step = 0; step < 5; ++step) {
    for (size_t t = 0; t < dims.size(); ++t) {
      const std::vector<Key> keys = ScatteredKeys(100, step / 2);
      const std::vector<float> gradients = RandomFloats(keys.size() * dims[t], 1, &random);
      MustApply(together[t].get(), keys, gradients, {.step = step});
      alone[t].Apply(keys, gradients, {.step = step});
    }
  }
  for (size_t t = 0; t < dims.size(); ++t) EXPECT_EQ(MustExport(together[t].get()), alone[t].records()) << dims[t];
}

TEST_P(TableContract, ABoundedTableRefusesIdsOutsideBeforeARowIsTouched) {
  const auto table = Make(TestSpec("user", 2, SparseOptimizerKind::kRowwiseAdagrad, 10));
  std::vector<Key> all(10);
  for (Key key = 0; key < 10; ++key) all[key] = key;
  MustApply(table.get(), all, std::vector<float>(20, 0.5f));
  const Records before = MustExport(table.get());
  const std::vector<Key> keys = {0, 3, 10, 4};
  std::vector<float> floats(8, 1.0f);
  for (const absl::Status& status :
       {table->Pull(keys, PullMode::kCreate, floats), table->Pull(keys, PullMode::kLook, floats),
        table->Apply(keys, floats, {}), table->Import(10, std::string(2 * 4 + 4 + 16, '\0'))}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("table \"user\" has 10 rows (ids 0 to 9), but id 10 was given"));
  }
  EXPECT_EQ(MustExport(table.get()), before);
}

TEST_P(TableContract, ATableOfOneRowHoldsIdZeroOnly) {
  const auto table = Make(TestSpec("tiny", 3, SparseOptimizerKind::kSgd, 1));
  std::vector<float> floats(3, 1.0f);
  const Key zero = 0, one = 1;
  EXPECT_TRUE(table->Pull(std::span(&zero, 1), PullMode::kCreate, floats).ok());
  EXPECT_EQ(table->Pull(std::span(&one, 1), PullMode::kCreate, floats).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(table->Apply(std::span(&one, 1), floats, {}).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(table->Stats().rows, 1u);
}

TEST_P(TableContract, ABadGradientIsRefusedWithTheWholeBatch) {
  const auto table = Make(TestSpec("item", 4, SparseOptimizerKind::kFtrl));
  const std::vector<Key> keys = ScatteredKeys(1000, 4);
  std::mt19937_64 random(4);
  MustApply(table.get(), keys, RandomFloats(keys.size() * 4, 1, &random));
  const Records before = MustExport(table.get());
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 1e38f, -1e38f}) {
    std::vector<float> gradients = RandomFloats(keys.size() * 4, 1, &random);
    gradients[4 * 777 + 2] = bad;
    const absl::Status status = table->Apply(keys, gradients, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("\"item\": the gradient of key " + std::to_string(keys[777]) + ", column 2"));
  }
  EXPECT_EQ(MustExport(table.get()), before);
}

TEST_P(TableContract, ABatchOfNothingSucceeds) {
  const auto table = Make(TestSpec("t", 4, SparseOptimizerKind::kAdam));
  EXPECT_TRUE(table->Pull({}, PullMode::kCreate, {}).ok());
  EXPECT_TRUE(table->Pull({}, PullMode::kLook, {}).ok());
  EXPECT_TRUE(table->Apply({}, {}, {}).ok());
  EXPECT_TRUE(MustExport(table.get()).empty());
  EXPECT_EQ(table->Stats().rows, 0u);
}

TEST_P(TableContract, MetadataCountsUpdatesAndKeepsTheLastStep) {
  const TableSpec spec = TestSpec("t", 3, SparseOptimizerKind::kRowwiseAdagrad);
  const auto table = Make(spec);
  const Key key = 99;
  MustPull(table.get(), std::span(&key, 1));
  for (const uint64_t step : {7u, 8u, 12u}) {
    MustApply(table.get(), std::span(&key, 1), std::vector<float>(3, 1.0f), {.step = step});
    MustPull(table.get(), std::span(&key, 1));
  }
  const Records records = MustExport(table.get());
  ASSERT_EQ(records.size(), 1u);
  const RowMetadata metadata = spec.Layout().Metadata(records.begin()->second.data());
  EXPECT_EQ(metadata.updates, 3u);
  EXPECT_EQ(metadata.frequency, 3u);
  EXPECT_EQ(metadata.last_step, 12u);
}

TEST_P(TableContract, AnExportStopsAtTheFirstError) {
  const auto table = Make(TestSpec("t", 2, SparseOptimizerKind::kSgd));
  MustPull(table.get(), ScatteredKeys(500, 6));
  int visits = 0;
  const absl::Status status = table->Export([&](Key, absl::string_view) -> absl::Status {
    return ++visits == 100 ? absl::DataLossError("no more") : absl::OkStatus();
  });
  EXPECT_EQ(status, absl::DataLossError("no more"));
  EXPECT_EQ(visits, 100);
}

TEST_P(TableContract, ARestoredTableTrainsOnAsTheSavedOne) {
  for (const SparseOptimizerKind kind : kAllOptimizers) {
    SCOPED_TRACE(static_cast<int>(kind));
    TableSpec spec = TestSpec("from" + std::to_string(static_cast<int>(kind)), 7, kind);
    const auto from = Make(spec);
    spec.name = "to" + std::to_string(static_cast<int>(kind));
    const auto to = Make(spec);
    std::mt19937_64 random(21);
    const std::vector<Key> keys = ScatteredKeys(300, 9);
    for (uint64_t step = 0; step < 3; ++step) {
      MustApply(from.get(), keys, RandomFloats(keys.size() * 7, 1, &random), {.step = step});
    }
    const absl::Status restored = from->Export([&](Key key, absl::string_view row) { return to->Import(key, row); });
    ASSERT_TRUE(restored.ok()) << restored;
    ASSERT_EQ(MustExport(to.get()), MustExport(from.get()));
    const std::vector<float> gradients = RandomFloats(keys.size() * 7, 1, &random);
    MustApply(from.get(), keys, gradients, {.step = 3});
    MustApply(to.get(), keys, gradients, {.step = 3});
    EXPECT_EQ(MustPull(to.get(), keys), MustPull(from.get(), keys));
    EXPECT_EQ(MustExport(to.get()), MustExport(from.get()));
  }
}

TEST_P(TableContract, RecordsThatArePutAreTheRows) {
  const TableSpec spec = TestSpec("t", 5, SparseOptimizerKind::kAdam);
  const auto table = Make(spec);
  const size_t bytes = spec.Layout().record_bytes();
  const std::vector<Key> keys = ScatteredKeys(400, 4);
  // Pulled, they are what an export has: also of rows that come to be by it.
  MustApply(table.get(), std::span(keys).first(200), std::vector<float>(1000, 0.5f));
  std::vector<char> records(keys.size() * bytes);
  const absl::Status pulled = table->PullRecords(keys, std::span<char>(records));
  ASSERT_TRUE(pulled.ok()) << pulled;
  Records exported = MustExport(table.get());
  ASSERT_EQ(exported.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(exported.at({BucketOf(keys[i]), keys[i]}), std::string(records.data() + i * bytes, bytes));
  }
  // Put, they replace rows, and make those that are absent.
  std::vector<Key> others = ScatteredKeys(100, 5);
  others.insert(others.end(), keys.begin() + 100, keys.begin() + 300);
  std::mt19937_64 random(6);
  for (size_t i = 0; i < others.size() * bytes; ++i) records[i] = static_cast<char>(random());
  const absl::Status put = table->PutRecords(others, std::span<const char>(records).first(others.size() * bytes));
  ASSERT_TRUE(put.ok()) << put;
  for (size_t i = 0; i < others.size(); ++i) {
    exported[{BucketOf(others[i]), others[i]}] = std::string(records.data() + i * bytes, bytes);
  }
  EXPECT_EQ(MustExport(table.get()), exported);
  EXPECT_EQ(table->Stats().rows, exported.size());
}

TEST_P(TableContract, ABatchOfRecordsMayBeSharedByItsStripes) {
  const TableSpec spec = TestSpec("t", 5, SparseOptimizerKind::kAdam);
  const auto table = Make(spec);
  const auto other_home = GetParam().make_home();
  const auto other = other_home->Make(spec);
  const size_t bytes = spec.Layout().record_bytes();
  const std::vector<Key> keys = ScatteredKeys(3000, 4);
  MustApply(table.get(), std::span(keys).first(900), std::vector<float>(4500, 0.5f));
  MustApply(other.get(), std::span(keys).first(900), std::vector<float>(4500, 0.5f));
  std::vector<char> whole(keys.size() * bytes), shared(keys.size() * bytes);
  ASSERT_TRUE(other->PullRecords(keys, std::span<char>(whole)).ok());
  // Calls visit(stripes) for parts of a plan of the keys on threads of their own.
  const auto share = [&](auto visit) {
    BatchPlan plan;
    plan.Build(keys);
    std::vector<std::thread> threads;
    std::atomic<int> failed{0};
    const uint32_t stripes = plan.stripes();
    for (const auto& [begin, end] : {std::pair{0u, 1u}, std::pair{1u, stripes / 2}, std::pair{stripes / 2, stripes}}) {
      threads.emplace_back([&, part = PlannedStripes(&plan, begin, end)] { failed += visit(part).ok() ? 0 : 1; });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failed, 0);
  };
  share([&](const PlannedStripes& part) { return table->PullRecords(keys, part, std::span<char>(shared)); });
  EXPECT_EQ(shared, whole);
  std::mt19937_64 random(6);
  for (char& byte : whole) byte = static_cast<char>(random());
  ASSERT_TRUE(other->PutRecords(keys, std::span<const char>(whole)).ok());
  share([&](const PlannedStripes& part) { return table->PutRecords(keys, part, std::span<const char>(whole)); });
  EXPECT_EQ(MustExport(table.get()), MustExport(other.get()));
}

TEST_P(TableContract, ABoundedTableGivesAndTakesNoRecordOutside) {
  const TableSpec spec = TestSpec("t", 2, SparseOptimizerKind::kSgd, 10);
  const auto table = Make(spec);
  const std::vector<Key> keys = {3, 10};
  std::vector<char> records(2 * spec.Layout().record_bytes());
  EXPECT_EQ(table->PullRecords(keys, std::span<char>(records)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(table->PutRecords(keys, std::span<const char>(records)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(table->Stats().rows, 0u);
}

TEST_P(TableContract, AnImportReplacesTheRow) {
  const TableSpec spec = TestSpec("t", 2, SparseOptimizerKind::kSgd);
  const auto table = Make(spec);
  const std::vector<Key> keys = ScatteredKeys(100, 2);
  MustApply(table.get(), keys, std::vector<float>(200, 1.0f));
  std::string record(spec.Layout().record_bytes(), '\x01');
  ASSERT_TRUE(table->Import(keys[50], record).ok());
  const Records records = MustExport(table.get());
  EXPECT_EQ(records.size(), 100u);
  EXPECT_EQ(records.at({BucketOf(keys[50]), keys[50]}), record);
  EXPECT_EQ(table->Stats().rows, 100u);
}

TEST_P(TableContract, AnImportOfAnotherSizeIsRefusedWithBothSizes) {
  const auto table = Make(TestSpec("t", 2, SparseOptimizerKind::kSgd));
  const absl::Status status = table->Import(3, std::string(21, '\0'));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(testing::HasSubstr("has 21 bytes"),
                     testing::HasSubstr("optimizer has " + std::to_string(table->spec().Layout().record_bytes()))));
  EXPECT_EQ(table->Stats().rows, 0u);
}

TEST_P(TableContract, WeightsOutOfRangeBecomeTheLargestAndAreCounted) {
  const double largest = GetParam().storage == RowType::kFloat16    ? 65504
                         : GetParam().storage == RowType::kBfloat16 ? std::ldexp(255, 120)
                                                                    : std::numeric_limits<float>::max();
  TableSpec spec = TestSpec("t", 3, SparseOptimizerKind::kSgd);
  spec.optimizer = {.kind = SparseOptimizerKind::kSgd, .learning_rate = 1e30};
  spec.initializer = {InitializerKind::kConstant, 0.5};
  const auto table = Make(spec);
  const std::vector<Key> keys = {7, 8, 9};
  // Up and down beyond the range (of float32 too), and not at all.
  MustApply(table.get(), keys, std::vector<float>{-1e9f, 1e9f, 0, 0, 0, 1e9f, 0, 0, 0});
  const float top = static_cast<float>(largest);
  EXPECT_THAT(MustPull(table.get(), keys), testing::ElementsAre(top, -top, 0.5f, 0.5f, 0.5f, -top, 0.5f, 0.5f, 0.5f));
  EXPECT_EQ(table->Stats().saturated_weights, 3u);
  MustPull(table.get(), keys);  // Is no update.
  EXPECT_EQ(table->Stats().saturated_weights, 3u);
}

TEST_P(TableContract, StochasticRoundingLosesNoSmallStepOnAverage) {
  // A step of 1/16 of a bfloat16 unit: rounded to the nearest, no row would ever move.
  constexpr uint32_t kDim = 16;
  constexpr int kSteps = 64;
  const double unit = GetParam().storage == RowType::kFloat16 ? 0x1p-10 : 0x1p-7;
  TableSpec spec = TestSpec("t", kDim, SparseOptimizerKind::kSgd);
  spec.optimizer = {.kind = SparseOptimizerKind::kSgd, .learning_rate = unit / 16};
  spec.initializer = {InitializerKind::kConstant, 1};
  const auto table = Make(spec);
  const std::vector<Key> keys = ScatteredKeys(1000, 5);
  for (int step = 0; step < kSteps; ++step) {
    MustApply(table.get(), keys, std::vector<float>(keys.size() * kDim, -1.0f), {.step = static_cast<uint64_t>(step)});
  }
  const std::vector<float> rows = MustPull(table.get(), keys);
  double sum = 0;
  for (const float weight : rows) sum += weight;
  // A weight's variance is at most kSteps * unit^2 / 4; five standard deviations of the mean.
  const double bound = 5 * unit * std::sqrt(kSteps / 4.0 / static_cast<double>(rows.size()));
  EXPECT_NEAR(sum / static_cast<double>(rows.size()), 1 + kSteps * unit / 16, bound);
}

// Each row's weights start equal and every gradient of a row is the same in all columns, so a row seen half-updated has
// unequal weights; and each update adds exactly 1, so a lost update shows in the sum.
TEST_P(TableContract, ConcurrentUpdatesAreWholeAndNoneIsLost) {
  constexpr uint32_t kDim = 24;
  constexpr int kWriters = 3, kReaders = 2, kRounds = 60;
  TableSpec spec = TestSpec("t", kDim, SparseOptimizerKind::kSgd);
  spec.optimizer = {.kind = SparseOptimizerKind::kSgd, .learning_rate = 1};
  spec.initializer = {InitializerKind::kConstant, 0};
  const auto table = Make(spec);
  const std::vector<Key> keys = ScatteredKeys(150, 12);
  const auto check_rows = [&](const std::vector<float>& rows) {
    for (size_t i = 0; i < rows.size(); i += kDim) {
      for (uint32_t d = 1; d < kDim; ++d) ASSERT_EQ(rows[i + d], rows[i]) << "torn row of key " << keys[i / kDim];
    }
  };
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        MustApply(table.get(), keys, std::vector<float>(keys.size() * kDim, -1.0f));
      }
    });
  }
  for (int reader = 0; reader < kReaders; ++reader) {
    threads.emplace_back([&, reader] {
      for (int round = 0; round < kRounds; ++round) {
        check_rows(MustPull(table.get(), keys, reader == 0 ? PullMode::kCreate : PullMode::kLook));
      }
    });
  }
  threads.emplace_back([&] {
    for (int round = 0; round < 5; ++round) MustExport(table.get());
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(MustPull(table.get(), keys), testing::Each(static_cast<float>(kWriters * kRounds)));
}

TEST_P(TableContract, AnExportWhileOthersWriteIsCompleteAndSorted) {
  const auto table = Make(TestSpec("t", 3, SparseOptimizerKind::kAdagrad));
  const std::vector<Key> old_keys = ScatteredKeys(400, 30);
  MustPull(table.get(), old_keys);
  std::thread writer([&] {
    for (uint64_t batch = 0; batch < 30; ++batch) {
      const std::vector<Key> keys = ScatteredKeys(40, 100 + batch);
      MustApply(table.get(), keys, std::vector<float>(keys.size() * 3, 1.0f));
    }
  });
  for (int round = 0; round < 8; ++round) {
    const Records records = MustExport(table.get());  // Checks the order.
    EXPECT_EQ(records.size() % 40, 0u);
    for (const Key key : old_keys) ASSERT_EQ(records.count({BucketOf(key), key}), 1u);
  }
  writer.join();
  EXPECT_EQ(MustExport(table.get()).size(), 400u + 30 * 40);
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_TABLE_CONTRACT_H_
