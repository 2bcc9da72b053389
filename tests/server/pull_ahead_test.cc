// Pulls ahead of their step: what is answered early, what waits, and that no answer is ever an old one.

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics.h"
#include "server/shard.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

v1::PullRequest Ahead(v1::PullRequest request) {
  request.set_ahead(true);
  return request;
}

v1::PullRequest Again(v1::PullRequest request) {
  request.set_parts(0);
  return request;
}

std::vector<uint32_t> PendingOf(const v1::PullResponse& response, int entry = 0) {
  std::vector<uint32_t> positions(response.tables(entry).pending().size() / sizeof(uint32_t));
  CopyBytes(absl::string_view(response.tables(entry).pending()), std::span<uint32_t>(positions));
  return positions;
}

class PullAhead : public ::testing::Test {
 protected:
  PullAhead() {
    job_.prefetch = true;
    job_.workers = 2;
    EXPECT_TRUE(server_.Open(job_).ok());
  }

  double Metric(const std::string& name) {
    const ServerMetrics metrics(&server_.metrics);  // The shard's own: they go by name.
    return (name == "ahead" ? metrics.rows_pulled_ahead : metrics.rows_pending).Value();
  }

  TestJob job_;
  TestShard server_;
};

TEST_F(PullAhead, WaitsForAllPullsOfTheStepBeforeAndIsThenAnsweredWithoutItsPushes) {
  ASSERT_TRUE(server_.Pull(job_.Pull(0, {{0, {1, 2}}}, 0)).ok());
  const PullInFlight ahead(server_.shard.get(), Ahead(job_.Pull(1, {{0, {2, 3, 4}}}, 0)));
  EXPECT_FALSE(ahead.done()) << "worker 1 may still pull, and so push, any row";
  ASSERT_TRUE(server_.Pull(job_.Pull(0, {{0, {4, 5}}}, 1)).ok());
  ASSERT_TRUE(ahead.done()) << "no push of step 0 has come, nor is one needed";
  EXPECT_EQ(ahead.response().version(), 0u);
  EXPECT_EQ(PendingOf(ahead.response()), (std::vector<uint32_t>{0, 2})) << "ids 2 and 4 were pulled for step 0";

  // The pending rows, asked for again, come with the step.
  PullInFlight again(server_.shard.get(), Again(job_.Pull(1, {{0, {2, 4}}}, 0)));
  ASSERT_TRUE(server_.Push(job_.Push(0, {{0, {1, 2}, std::vector<float>(8, 1.0f)}}, 0)).ok());
  EXPECT_FALSE(again.done());
  ASSERT_TRUE(server_.Push(job_.Push(0, {{0, {4, 5}, std::vector<float>(8, 1.0f)}}, 1)).ok());
  ASSERT_TRUE(again.done());
  EXPECT_EQ(again.response().version(), 1u);
}

TEST_F(PullAhead, OneThatComesAfterItsStepHasNothingPending) {
  for (uint32_t worker : {0, 1}) ASSERT_TRUE(server_.Pull(job_.Pull(0, {{0, {1}}}, worker)).ok());
  for (uint32_t worker : {0, 1}) {
    ASSERT_TRUE(server_.Push(job_.Push(0, {{0, {1}, {1, 1, 1, 1}}}, worker)).ok());
  }
  const auto pull = server_.Pull(Ahead(job_.Pull(1, {{0, {1, 2}}}, 0)));
  ASSERT_TRUE(pull.ok()) << pull.status();
  EXPECT_EQ(pull->version(), 1u);
  EXPECT_TRUE(PendingOf(*pull).empty());
}

TEST_F(PullAhead, APushOfARowThatNobodyPulledIsRefusedByName) {
  ASSERT_TRUE(server_.Pull(job_.Pull(0, {{0, {1}}}, 0)).ok());
  ASSERT_TRUE(server_.Pull(job_.Pull(0, {}, 1)).ok());
  const absl::Status status = server_.Push(job_.Push(0, {{0, {1, 77}, std::vector<float>(8, 1.0f)}}, 0));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("worker 0 for step 0: table \"user\": id 77 was not pulled for this step"));
}

TEST_F(PullAhead, APushBeforeTheWorkersPullIsRefused) {
  v1::PullRequest half = job_.Pull(0, {{0, {1}}}, 0);
  half.set_parts(2);
  ASSERT_TRUE(server_.Pull(half).ok());
  const absl::Status status = server_.Push(job_.Push(0, {{0, {1}, {1, 1, 1, 1}}}, 0));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not all parts of the worker's pull have come"));
}

TEST_F(PullAhead, OddPartsAndStepsTooFarAheadAreRefused) {
  v1::PullRequest odd = job_.Pull(0, {{0, {1}}}, 0);
  odd.set_part(1);
  EXPECT_THAT(std::string(server_.Pull(odd).status().message()), HasSubstr("part 1 of 1"));
  const absl::Status far = server_.Pull(Ahead(job_.Pull(2, {{0, {1}}}, 0))).status();
  EXPECT_EQ(far.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(far.message()), HasSubstr("a pull may be one ahead"));
}

TEST_F(PullAhead, ALookIsNoPullForTraining) {
  ASSERT_TRUE(server_.Pull(job_.Pull(0, {{0, {1}}}, 0)).ok());
  ASSERT_TRUE(server_.Pull(job_.Pull(0, {{0, {9}}}, 1, /*create=*/false)).ok());
  const PullInFlight ahead(server_.shard.get(), Ahead(job_.Pull(1, {{0, {2}}}, 0)));
  EXPECT_FALSE(ahead.done()) << "worker 1 has only looked";
  server_.shard->CancelPull(ahead.id());
}

TEST_F(PullAhead, WithoutPrefetchAheadMeansNothing) {
  TestJob plain;
  plain.id = "plain";
  ASSERT_TRUE(server_.Open(plain).ok());
  ASSERT_TRUE(server_.Pull(plain.Pull(0, {{0, {1}}})).ok());
  const PullInFlight ahead(server_.shard.get(), Ahead(plain.Pull(1, {{0, {2}}})));
  EXPECT_FALSE(ahead.done());
  ASSERT_TRUE(server_.Push(plain.Push(0, {{0, {1}, {1, 1, 1, 1}}})).ok());
  ASSERT_TRUE(ahead.done());
  EXPECT_EQ(ahead.response().version(), 1u);
}

TEST_F(PullAhead, CountsRowsGivenEarlyAndRowsLeftPending) {
  ASSERT_TRUE(server_.Pull(job_.Pull(0, {{0, {1, 2}}}, 0)).ok());
  ASSERT_TRUE(server_.Pull(job_.Pull(0, {}, 1)).ok());
  EXPECT_EQ(Metric("ahead"), 0);
  ASSERT_TRUE(server_.Pull(Ahead(job_.Pull(1, {{0, {2, 3, 4}}}, 0))).ok());
  EXPECT_EQ(Metric("ahead"), 2);
  EXPECT_EQ(Metric("pending"), 1);
}

// Random steps of two workers on threads of their own, each pulling ahead; every row that a worker gets is compared
// with that of a job which only ever pulls in time.
TEST_F(PullAhead, EveryRowIsWhatAPullInTimeWouldHaveGiven) {
  constexpr uint64_t kSteps = 60;
  constexpr uint64_t kSeed = 20261129;
  constexpr Key kKeys = 120;  // Few, so that steps overlap.
  // What each worker pulls at each step.
  std::vector<std::vector<Key>> keys_of(2 * kSteps);
  std::mt19937_64 random(kSeed);
  for (std::vector<Key>& keys : keys_of) {
    std::vector<Key> all(kKeys);
    for (Key k = 0; k < kKeys; ++k) all[k] = k;
    std::shuffle(all.begin(), all.end(), random);
    all.resize(random() % 60);
    keys = all;
  }
  const auto gradients_of = [&](uint64_t step, uint32_t worker) {
    const std::vector<Key>& keys = keys_of[2 * step + worker];
    std::vector<float> gradients;
    for (const Key key : keys) {
      for (int c = 0; c < 4; ++c)
        gradients.push_back(0.01f * static_cast<float>((key * 7 + step * 3 + worker + c) % 11));
    }
    return gradients;
  };

  TestJob plain = job_;
  plain.id = "plain";
  plain.prefetch = false;
  ASSERT_TRUE(server_.Open(plain).ok());
  std::vector<std::vector<float>> expected(2 * kSteps);
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (uint32_t worker : {0, 1}) {
      const auto pull = server_.Pull(plain.Pull(step, {{0, keys_of[2 * step + worker]}}, worker));
      ASSERT_TRUE(pull.ok()) << pull.status();
      expected[2 * step + worker] = RowsOf(*pull);
    }
    for (uint32_t worker : {0, 1}) {
      ASSERT_TRUE(
          server_.Push(plain.Push(step, {{0, keys_of[2 * step + worker], gradients_of(step, worker)}}, worker)).ok());
    }
  }

  std::vector<std::thread> workers;
  for (uint32_t worker : {0, 1}) {
    workers.emplace_back([&, worker] {
      std::unique_ptr<PullInFlight> pull =
          std::make_unique<PullInFlight>(server_.shard.get(), Ahead(job_.Pull(0, {{0, keys_of[worker]}}, worker)));
      for (uint64_t step = 0; step < kSteps; ++step) {
        const std::vector<Key>& keys = keys_of[2 * step + worker];
        ASSERT_TRUE(pull->Wait().ok());
        std::vector<float> rows = RowsOf(pull->response());
        std::vector<Key> pending;
        for (const uint32_t position : PendingOf(pull->response())) pending.push_back(keys[position]);
        // Also without a pending row: its answer says that the step has come.
        PullInFlight again(server_.shard.get(), Again(job_.Pull(step, {{0, pending}}, worker)));
        ASSERT_TRUE(again.Wait().ok());
        const std::vector<float> late = RowsOf(again.response());
        const std::vector<uint32_t> positions = PendingOf(pull->response());
        for (size_t i = 0; i < positions.size(); ++i) {
          std::copy_n(late.begin() + static_cast<int64_t>(4 * i), 4, rows.begin() + 4 * positions[i]);
        }
        EXPECT_EQ(rows, expected[2 * step + worker]) << "step " << step << ", worker " << worker << ", seed " << kSeed;
        std::unique_ptr<PullInFlight> next;
        if (step + 1 < kSteps) {
          next = std::make_unique<PullInFlight>(
              server_.shard.get(), Ahead(job_.Pull(step + 1, {{0, keys_of[2 * (step + 1) + worker]}}, worker)));
        }
        ASSERT_TRUE(server_.Push(job_.Push(step, {{0, keys, gradients_of(step, worker)}}, worker)).ok());
        pull = std::move(next);
      }
    });
  }
  for (std::thread& thread : workers) thread.join();
  EXPECT_GT(Metric("ahead"), 0) << "nothing was pulled ahead, so nothing was tested";
  EXPECT_GT(Metric("pending"), 0);
}

}  // namespace
}  // namespace sparrow
