// Rows that several workers hold together change no number: whole runs against real shards, with and without them.

#include "worker/replicated_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/hot_rows_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

class ReplicatedRowsTest : public HotRowsTest {
 protected:
  // Long enough for many decisions, often and seldom ones.
  static v1::Job Job(const std::string& budget, const std::string& optimizer = "adam {}") {
    v1::Job job = HotRowsTest::Job(budget, optimizer);
    job.mutable_train()->set_epochs(2);
    job.mutable_eval()->set_every_steps(5);
    return job;
  }
  struct Counts {
    double hits, misses, promoted, evictions, exchanged, returned, pulled, pushed;
  };
  Counts Now() const {
    const WorkerMetrics& metrics = harness_.worker_metrics();
    return {metrics.hot_row_hits.Value(),
            metrics.hot_row_misses.Value(),
            metrics.hot_rows_promoted.Value(),
            metrics.hot_row_evictions.Value(),
            metrics.hot_row_exchange_bytes.Value(),
            metrics.hot_rows_returned.Value(),
            metrics.rows_pulled.Value(),
            metrics.rows_pushed.Value()};
  }
};

class ReplicatedRowsOptimizer : public ReplicatedRowsTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(ReplicatedRowsOptimizer, AnyBudgetTrainsEvaluatesAndSavesTheSameToTheLastBit) {
  const auto run = [&](uint32_t workers, uint32_t servers, const std::string& budget, bool prefetch) {
    v1::Job job = Job(budget, GetParam());
    job.mutable_train()->set_prefetch(prefetch);
    return harness_.Train(job, {.workers = workers, .servers = servers});
  };
  const auto expect_equal = [&](uint32_t workers, uint32_t servers, const std::vector<std::string>& budgets,
                                bool prefetch) {
    const auto expected = run(workers, servers, "", /*prefetch=*/true);
    for (const std::string& budget : budgets) {
      SCOPED_TRACE(absl::StrCat(workers, " workers, ", servers, " servers, ", budget, prefetch ? "" : ", no prefetch"));
      ExpectEqual(run(workers, servers, budget, prefetch), expected);
    }
  };
  expect_equal(2, 1, {"rows: 0", kSome, kEverything}, true);
  expect_equal(3, 2, {kSome}, true);
  expect_equal(2, 3, {kSome}, false);
}

INSTANTIATE_TEST_SUITE_P(All, ReplicatedRowsOptimizer,
                         ::testing::Values("sgd {}", "momentum {}", "adagrad {}", "rowwise_adagrad {}", "adam {}",
                                           "rowwise_adam {}", "ftrl {}", "rmsprop {}"));

// Five workers of 32 rows, and a last batch of one row, which leaves four of them without any.
TEST_F(ReplicatedRowsTest, RowsThatComeAndGoChangeNothing) {
  WriteShiftingClicks();
  for (const uint32_t workers : {2, 5}) {
    for (const bool prefetch : {true, false}) {
      if (workers == 5 && !prefetch) continue;
      SCOPED_TRACE(absl::StrCat(workers, prefetch ? " workers" : " workers, no prefetch"));
      v1::Job job = ShiftingJob();
      job.mutable_train()->set_prefetch(prefetch);
      const TrainingHarness::Run run = {.workers = workers, .servers = 2};
      const auto expected = harness_.Train(job, run);
      *job.mutable_train()->mutable_hot_rows() = Job(kSome).train().hot_rows();
      const Counts before = Now();
      ExpectEqual(harness_.Train(job, run), expected);
      const Counts after = Now();
      EXPECT_GT(after.promoted - before.promoted, 128.0 * workers) << "more than have room";
      EXPECT_GT(after.evictions - before.evictions, 20.0 * workers);
    }
  }
}

TEST_F(ReplicatedRowsTest, TheMetricsSayWhereRowsWere) {
  const auto run = [&](const std::string& budget) {
    v1::Job job = Job(budget);
    job.mutable_data()->clear_test();  // Evaluations pull as well.
    job.clear_eval();
    const Counts before = Now();
    double bytes = 0;
    const auto result = harness_.Train(job, {.workers = 2, .on_progress = [&](const v1::Progress&) {
                                               bytes = harness_.worker_metrics().hot_row_bytes.Value();
                                             }});
    EXPECT_TRUE(result.status().ok()) << result.status();
    EXPECT_EQ(bytes > 0, !budget.empty() && budget != "rows: 0");
    EXPECT_EQ(harness_.worker_metrics().hot_row_bytes.Value(), 0) << "the job is over";
    const Counts after = Now();
    return Counts{after.hits - before.hits,           after.misses - before.misses,
                  after.promoted - before.promoted,   after.evictions - before.evictions,
                  after.exchanged - before.exchanged, after.returned - before.returned,
                  after.pulled - before.pulled,       after.pushed - before.pushed};
  };
  const Counts none = run("");
  EXPECT_EQ(none.hits + none.misses + none.promoted + none.evictions + none.exchanged + none.returned, 0);
  const Counts zero = run("rows: 0");
  EXPECT_EQ(zero.hits + zero.promoted + zero.evictions + zero.exchanged + zero.returned, 0);
  EXPECT_EQ(zero.misses, none.pulled);
  EXPECT_EQ(zero.pushed, none.pushed);
  const Counts some = run(kSome);
  EXPECT_EQ(some.hits + some.misses, none.pulled);
  EXPECT_GT(some.hits, 0);
  EXPECT_GT(some.promoted, 0);
  EXPECT_GT(some.exchanged, 0);
  EXPECT_EQ(some.pulled, some.misses + some.promoted);
  EXPECT_EQ(some.pushed, some.misses);
  EXPECT_GT(some.returned, 0) << "for the checkpoint";
  const Counts every = run(kEverything);
  EXPECT_GT(every.hits, some.hits);
  EXPECT_LT(every.pushed, some.pushed);
  EXPECT_EQ(every.evictions, 0);
  // A decision is a function of what workers have used, whenever they looked it up.
  const Counts again = run(kSome);
  EXPECT_EQ(again.hits, some.hits);
  EXPECT_EQ(again.promoted, some.promoted);
  EXPECT_EQ(again.evictions, some.evictions);
  EXPECT_EQ(again.exchanged, some.exchanged);
}

TEST_F(ReplicatedRowsTest, AJobIsResumedWithAndWithoutThemByAnyNumberOfWorkers) {
  const auto begin = [&](const std::string& budget, uint32_t workers) {
    v1::Job first = Job(budget);
    first.mutable_train()->set_steps_max(9);
    return harness_.Train(first, {.workers = workers, .servers = 2});
  };
  for (const auto& [workers, later] : {std::pair(2u, 3u), {3u, 1u}}) {
    const auto plain = begin("", workers);
    ASSERT_TRUE(plain.status().ok()) << plain.status();
    const auto go_on = [&](const std::string& budget, const TrainingHarness::Result& from) {
      return harness_.Train(Job(budget), {.workers = later, .servers = 1, .restore_from = from.summary().checkpoint()});
    };
    const auto expected = go_on("", plain);
    for (const std::string first_budget : {kSome, kEverything}) {
      const auto begun = begin(first_budget, workers);
      ExpectEqual(begun, plain);
      for (const std::string budget : {"", kSome}) {
        SCOPED_TRACE(absl::StrCat(workers, " workers, ", first_budget, ", then ", later, ", ", budget));
        ExpectEqual(go_on(budget, begun), expected);
      }
    }
  }
}

TEST_F(ReplicatedRowsTest, LostAnswersChangeNothing) {
  const auto expected = harness_.Train(Job(""), {.workers = 2, .servers = 2});
  for (const std::string budget : {kSome, kEverything}) {
    SCOPED_TRACE(budget);
    std::atomic<int> lost{0};
    const auto run =
        harness_.Train(Job(budget), {.workers = 2, .servers = 2, .wrap = [&](std::unique_ptr<PsTransport> inner) {
                                       return std::make_unique<LossyTransport>(std::move(inner), &lost);
                                     }});
    ExpectEqual(run, expected);
    EXPECT_GT(lost, 10);
  }
}

TEST_F(ReplicatedRowsTest, ATableThatDoesNotFitOnItsServerTrainsTheSame) {
  v1::Job job = Job("");
  for (v1::TableConfig& table : *job.mutable_tables()) table.set_dim(512);
  job.mutable_model()->mutable_dlrm()->set_bottom(1, 512);
  uint64_t evictions = 0;
  const TrainingHarness::Run run = {
      .workers = 2,
      .on_progress = [&](const v1::Progress&) { evictions = harness_.shard(0)->GetUsage().evictions; },
      .server_memory_bytes = uint64_t{1} << 20};
  const auto expected = harness_.Train(job, run);
  *job.mutable_train()->mutable_hot_rows() = Job(kSome).train().hot_rows();
  evictions = 0;
  ExpectEqual(harness_.Train(job, run), expected);
  EXPECT_GT(evictions, 100u) << "to the server's disk";
}

// ------------------------------------------------------------------------------------------------------- failures

// Changes what one rank says in one of its exchanges.
class LyingCollective final : public Collective {
 public:
  using Lie = std::function<void(std::string*)>;
  LyingCollective(std::unique_ptr<Collective> inner, int after, Lie lie)
      : inner_(std::move(inner)), left_(after), lie_(std::move(lie)) {}

  uint32_t rank() const override { return inner_->rank(); }
  uint32_t size() const override { return inner_->size(); }
  absl::Status AllReduceSum(std::span<float> values) override { return inner_->AllReduceSum(values); }
  absl::Status AllReduceSum(std::span<double> values) override { return inner_->AllReduceSum(values); }
  absl::Status ReduceScatterSum(std::span<float> values, const SliceEnds& ends) override {
    return inner_->ReduceScatterSum(values, ends);
  }
  absl::Status AllGatherSlices(std::span<float> values, const SliceEnds& ends) override {
    return inner_->AllGatherSlices(values, ends);
  }
  uint64_t slice_bytes_sent() const override { return inner_->slice_bytes_sent(); }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override {
    std::string said(bytes);
    const bool is_message = said.size() >= sizeof(HotHead) && said.compare(0, 8, "parwhms1") == 0;
    if (is_message && left_-- == 0) lie_(&said);
    return inner_->AllGather(said);
  }
  absl::Status Barrier() override { return inner_->Barrier(); }

 private:
  const std::unique_ptr<Collective> inner_;
  int left_;
  const Lie lie_;
};

TEST_F(ReplicatedRowsTest, AWorkerThatSaysSomethingElseIsNamed) {
  struct Case {
    const char* name;
    int after;  // Exchanges that are as they should be.
    LyingCollective::Lie lie;
    std::vector<std::string> parts;
  };
  const auto head = [](std::string* said) { return reinterpret_cast<HotHead*>(said->data()); };
  const std::vector<Case> cases = {
      {"Mark", 0, [&](std::string* said) { head(said)->magic ^= 4; }, {"step 0", "the message's mark"}},
      {"Rank", 3, [&](std::string* said) { head(said)->rank = 0; }, {"step 3", "the message's rank is 0, expected 1"}},
      {"Step", 3, [&](std::string* said) { ++head(said)->step; }, {"the step is 4, expected 3"}},
      {"Set", 5, [&](std::string* said) { ++head(said)->set; }, {"step 5", "the digest of the rows held"}},
      {"Records", 8, [&](std::string* said) { ++head(said)->records; }, {"the digest of the rows' values"}},
      {"Samples", 1, [&](std::string* said) { head(said)->samples = 0; }, {}},
      {"Short", 4, [&](std::string* said) { said->pop_back(); }, {"bytes ends in"}},
      {"Empty", 4, [&](std::string* said) { said->clear(); }, {"the message of 0 bytes ends in its head"}},
      {"Long", 4, [&](std::string* said) { said->append("abcd"); }, {"goes on behind its end"}},
      {"Slot",
       6,
       [&](std::string* said) {
         const uint32_t slot = 1 << 20;
         said->replace(sizeof(HotHead) + 4, 4, reinterpret_cast<const char*>(&slot), 4);
       },
       {"a gradient is of slot 1048576, where no row of table \"a\" is held"}},
      {"Nan",
       6,
       [&](std::string* said) {
         uint32_t n;
         said->copy(reinterpret_cast<char*>(&n), 4, sizeof(HotHead));
         said->replace(sizeof(HotHead) + 4 + 4 * n, 4, "\xff\xff\xff\xff");
       },
       {"step 6", "table \"a\": the gradient of key", "nan"}},
      {"Twice",
       6,
       [&](std::string* said) { said->replace(sizeof(HotHead) + 8, 4, *said, sizeof(HotHead) + 4, 4); },
       {"table \"a\": id", "has two gradients"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto result = harness_.Train(
        Job(kSome), {.workers = 3, .wrap_collective = [&](std::unique_ptr<Collective> inner) {
                       const bool lies = inner->rank() == 1;
                       return std::make_unique<LyingCollective>(std::move(inner), lies ? c.after : -1, c.lie);
                     }});
    if (c.parts.empty()) continue;  // It must end, no more.
    for (const auto& rank : result.ranks) {
      ASSERT_FALSE(rank.ok());
      const std::string message(rank.status().message());
      if (absl::IsUnavailable(rank.status())) continue;  // Another one was faster.
      EXPECT_THAT(message, HasSubstr("rows held by all workers: worker 1: "));
      for (const std::string& part : c.parts) EXPECT_THAT(message, HasSubstr(part));
    }
    EXPECT_FALSE(absl::IsUnavailable(result.status()) && absl::IsUnavailable(result.ranks[1].status()));
  }
}

TEST_F(ReplicatedRowsTest, TrainingThatDivergesEndsTheJob) {
  v1::Job job = Job(kEverything, "sgd {}");
  for (v1::TableConfig& table : *job.mutable_tables()) table.mutable_optimizer()->set_learning_rate(1e30);
  const auto result = harness_.Train(job, {.workers = 2});
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
}

TEST(DecidesHotRows, OftenAtTheBeginningAndNeverInTwoStepsOnEnd) {
  EXPECT_TRUE(DecidesHotRows(0));
  uint64_t last = 0;
  for (uint64_t step = 1; step < 1000; ++step) {
    if (!DecidesHotRows(step)) continue;
    EXPECT_GE(step - last, 2u);
    EXPECT_LE(step - last, 8u);
    last = step;
  }
}

}  // namespace
}  // namespace sparrow
