// Rows that the worker holds itself change no number: whole runs against real shards, with and without them.

#include "worker/hot_rows.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/worker/hot_rows_fixture.h"

namespace sparrow {
namespace {

class HotRowsOptimizer : public HotRowsTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(HotRowsOptimizer, AnyBudgetTrainsEvaluatesAndSavesTheSameToTheLastBit) {
  const auto run = [&](uint32_t servers, const std::string& budget, bool prefetch) {
    v1::Job job = Job(budget, GetParam());
    job.mutable_train()->set_prefetch(prefetch);
    return harness_.Train(job, {.servers = servers});
  };
  const auto expect_equal = [&](uint32_t servers, const std::vector<std::string>& budgets, bool prefetch) {
    const auto expected = run(servers, "", /*prefetch=*/true);
    for (const std::string& budget : budgets) {
      SCOPED_TRACE(absl::StrCat(servers, " servers, ", budget, prefetch ? "" : ", without prefetch"));
      ExpectEqual(run(servers, budget, prefetch), expected);
    }
  };
  expect_equal(1, {"rows: 0", kSome, "bytes: 30000", kEverything}, true);
  expect_equal(3, {kSome}, true);
  expect_equal(2, {"rows: 0", kSome}, false);
}

INSTANTIATE_TEST_SUITE_P(All, HotRowsOptimizer,
                         ::testing::Values("sgd {}", "momentum {}", "adagrad {}", "rowwise_adagrad {}", "adam {}",
                                           "rowwise_adam {}", "ftrl {}", "rmsprop {}"));

TEST_F(HotRowsTest, TheMetricsSayWhereRowsWere) {
  const WorkerMetrics& metrics = harness_.worker_metrics();
  struct Counts {
    double hits, misses, evictions, returned, pulled, pushed;
  };
  const auto run = [&](const std::string& budget) {
    const auto now = [&]() -> Counts {
      return {metrics.hot_row_hits.Value(),      metrics.hot_row_misses.Value(), metrics.hot_row_evictions.Value(),
              metrics.hot_rows_returned.Value(), metrics.rows_pulled.Value(),    metrics.rows_pushed.Value()};
    };
    v1::Job job = Job(budget);
    job.mutable_data()->clear_test();  // Evaluations pull as well.
    job.clear_eval();
    const Counts before = now();
    double bytes = 0;
    const auto result =
        harness_.Train(job, {.on_progress = [&](const v1::Progress&) { bytes = metrics.hot_row_bytes.Value(); }});
    EXPECT_TRUE(result.status().ok()) << result.status();
    EXPECT_EQ(bytes > 0, !budget.empty() && budget != "rows: 0");
    EXPECT_EQ(metrics.hot_row_bytes.Value(), 0) << "the job is over";
    const Counts after = now();
    return std::pair(
        Counts{after.hits - before.hits, after.misses - before.misses, after.evictions - before.evictions,
               after.returned - before.returned, after.pulled - before.pulled, after.pushed - before.pushed},
        static_cast<double>(result.rows));
  };
  const auto [none, all_rows] = run("");
  EXPECT_EQ(none.hits + none.misses + none.evictions + none.returned, 0);
  EXPECT_GT(none.pushed, 0);
  EXPECT_EQ(none.pushed, none.pulled);
  const auto [zero, rows_of_zero] = run("rows: 0");
  EXPECT_EQ(zero.hits, 0);
  EXPECT_EQ(zero.misses, none.pulled);
  EXPECT_EQ(zero.pulled, none.pulled);
  EXPECT_EQ(zero.evictions, 0) << "none was kept";
  EXPECT_EQ(zero.returned, none.pushed);
  EXPECT_EQ(zero.pushed, 0) << "no gradient leaves the worker";
  const auto [some, rows_of_some] = run(kSome);
  EXPECT_GT(some.hits, 0);
  EXPECT_EQ(some.hits + some.misses, none.pulled);
  EXPECT_GT(some.evictions, 0);
  EXPECT_GT(some.returned, some.evictions);
  const auto [every, rows_of_every] = run(kEverything);
  EXPECT_EQ(every.misses, all_rows) << "each row is lent once";
  EXPECT_EQ(every.hits + every.misses, none.pulled);
  EXPECT_EQ(every.evictions, 0);
  EXPECT_EQ(every.returned, all_rows) << "for the checkpoint";
  EXPECT_EQ(rows_of_zero, all_rows);
  EXPECT_EQ(rows_of_some, all_rows);
  EXPECT_EQ(rows_of_every, all_rows);
}

TEST_F(HotRowsTest, AJobIsResumedWithAndWithoutThem) {
  const auto whole = harness_.Train(Job(""), {});
  for (const std::string first_budget : {"", kSome, kEverything}) {
    v1::Job first = Job(first_budget);
    first.mutable_train()->set_steps_max(5);
    const auto begun = harness_.Train(first, {});
    ASSERT_TRUE(begun.status().ok()) << begun.status();
    for (const std::string budget : {"", "rows: 0", kSome, kEverything}) {
      SCOPED_TRACE(absl::StrCat(first_budget, " then ", budget));
      const auto rest = harness_.Train(Job(budget), {.servers = 1, .restore_from = begun.summary().checkpoint()});
      ASSERT_TRUE(rest.status().ok()) << rest.status();
      EXPECT_EQ(rest.recorder.losses.back().loss(), whole.recorder.losses.back().loss());
      EXPECT_EQ(Files(rest.summary().checkpoint()), Files(whole.summary().checkpoint()));
    }
  }
}

TEST_F(HotRowsTest, LostAnswersChangeNothing) {
  const auto expected = harness_.Train(Job(""), {.servers = 2});
  for (const std::string budget : {"rows: 0", kSome, kEverything}) {
    SCOPED_TRACE(budget);
    std::atomic<int> lost{0};
    const auto run = harness_.Train(Job(budget), {.servers = 2, .wrap = [&](std::unique_ptr<PsTransport> inner) {
                                                    return std::make_unique<LossyTransport>(std::move(inner), &lost);
                                                  }});
    ExpectEqual(run, expected);
    EXPECT_GT(lost, 10);
  }
}

// A server that refuses the third step's rows.
class RefusingTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  void Push(const RowPush* request, v1::PushResponse* response, absl::Duration timeout, Done done) override {
    if (request->message.step() == 2) return done(absl::FailedPreconditionError("not this one"));
    ForwardingTransport::Push(request, response, timeout, std::move(done));
  }
};

// The next step's rows wait for that push: it must not be waited for.
TEST_F(HotRowsTest, APushThatIsRefusedEndsTheJobAtOnce) {
  for (const std::string budget : {"rows: 0", kSome, kEverything}) {
    SCOPED_TRACE(budget);
    const absl::Time start = absl::Now();
    const auto result = harness_.Train(Job(budget), {.servers = 2, .wrap = [](std::unique_ptr<PsTransport> inner) {
                                                       return std::make_unique<RefusingTransport>(std::move(inner));
                                                     }});
    EXPECT_TRUE(absl::IsFailedPrecondition(result.status())) << result.status();
    EXPECT_LT(absl::Now() - start, absl::Minutes(5)) << "a pull's timeout is ten minutes";
  }
}

// What would spoil a row is refused, as a server refuses it.
TEST_F(HotRowsTest, TrainingThatDivergesEndsTheJob) {
  v1::Job job = Job(kSome, "sgd {}");
  for (v1::TableConfig& table : *job.mutable_tables()) table.mutable_optimizer()->set_learning_rate(1e30);
  const auto result = harness_.Train(job, {});
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
}

TEST_F(HotRowsTest, ATableThatDoesNotFitOnItsServerTrainsTheSame) {
  v1::Job job = Job("");
  for (v1::TableConfig& table : *job.mutable_tables()) table.set_dim(512);
  job.mutable_model()->mutable_dlrm()->set_bottom(1, 512);
  uint64_t evictions = 0;
  const TrainingHarness::Run run = {
      .on_progress = [&](const v1::Progress&) { evictions = harness_.shard(0)->GetUsage().evictions; },
      .server_memory_bytes = uint64_t{1} << 20};
  const auto expected = harness_.Train(job, run);
  for (const std::string budget : {"rows: 0", kSome}) {
    SCOPED_TRACE(budget);
    *job.mutable_train()->mutable_hot_rows() = Job(budget).train().hot_rows();
    evictions = 0;
    ExpectEqual(harness_.Train(job, run), expected);
    EXPECT_GT(evictions, 100u) << "to the server's disk";
  }
}

TableSpec Spec(uint32_t dim, SparseOptimizerKind kind, uint64_t bounded_rows) {
  TableSpec spec;
  spec.dim = dim;
  spec.optimizer.kind = kind;
  spec.bounded_rows = bounded_rows;
  return spec;
}

TEST(ShareHotRows, TablesOfOneLayoutShareACacheAndSmallTablesLeaveRoom) {
  const std::vector<TableSpec> tables = {Spec(4, SparseOptimizerKind::kSgd, 100), Spec(4, SparseOptimizerKind::kSgd, 0),
                                         Spec(4, SparseOptimizerKind::kAdam, 0),
                                         Spec(8, SparseOptimizerKind::kSgd, 5000)};
  const auto rows_of = [&](const HotRowShare& share) {
    return share.bytes / RowCacheSlotBytes(tables[share.tables[0]].Layout());
  };
  v1::HotRows budget;
  budget.set_rows(30'000);
  auto shares = ShareHotRows(budget, tables);
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_EQ(shares[0].tables, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(shares[1].tables, std::vector<uint32_t>{2});
  EXPECT_EQ(shares[2].tables, std::vector<uint32_t>{3});
  // 100 and 5,000 are whole, with half as many slots more; the rest is halved; all in buckets of 128.
  EXPECT_EQ(rows_of(shares[0]), (150u + 11'175 + 127) / 128 * 128);
  EXPECT_EQ(rows_of(shares[1]), (11'175u + 127) / 128 * 128);
  EXPECT_EQ(rows_of(shares[2]), 7'552u);
  budget.set_rows(0);
  for (const HotRowShare& share : ShareHotRows(budget, tables)) EXPECT_EQ(share.bytes, 0u);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{1} << 20, uint64_t{1} << 40}) {
    budget.set_bytes(bytes);
    uint64_t sum = 0;
    for (const HotRowShare& share : ShareHotRows(budget, tables)) sum += share.bytes;
    EXPECT_LE(sum, bytes);
    EXPECT_GE(sum + 500, bytes) << "hashed tables take what there is";
  }
}

// What a budget beyond all rows promises.
TEST(ShareHotRows, ATableThatFitsIsHeldAsAWhole) {
  constexpr uint64_t kRows = 50'000;
  const std::vector<TableSpec> tables = {Spec(4, SparseOptimizerKind::kSgd, kRows)};
  v1::HotRows budget;
  budget.set_rows(10 * kRows);
  const std::vector<HotRowShare> shares = ShareHotRows(budget, tables);
  RowCacheCpu cache({.layout = tables[0].Layout(), .bytes = shares[0].bytes, .staging_rows = 0, .batch_rows = kRows});
  EXPECT_LT(cache.slots(), 2 * kRows);
  std::vector<RowName> names;
  for (uint64_t key = 0; key < kRows; ++key) names.push_back({.key = key, .table = 0});
  const std::vector<char> records(kRows * tables[0].Layout().slot_bytes());
  std::vector<uint32_t> slots(kRows);
  const EvictedRows evicted = cache.Insert(names, records, {.step = 1, .oldest_in_flight = 1}, slots);
  EXPECT_TRUE(evicted.names.empty());
  EXPECT_TRUE(evicted.refused.empty());
}

}  // namespace
}  // namespace sparrow
