// Jobs, steps, sums: what a shard does with requests that are well formed. (request_check_test.cc has the others.)

#include "server/shard.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"
#include "tests/support/edge_keys.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

TEST(Shard, PushMovesRowsByTheMeanGradient) {
  TestShard server;
  const TestJob job;
  ASSERT_TRUE(server.Open(job).ok());
  const auto before = server.Pull(job.Pull(0, {{0, {5, 9}}}));
  ASSERT_TRUE(before.ok()) << before.status();
  ASSERT_TRUE(server.Push(job.Push(0, {{0, {9, 5}, {8, 0, 0, 4, 0, 2, 0, 0}}}, 0, 4)).ok());
  const auto after = server.Pull(job.Pull(1, {{0, {5, 9}}}));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->version(), 1u);
  EXPECT_EQ(after->tables(0).dim(), 4u);
  // w - 0.5 * g / 4
  std::vector<float> expected = RowsOf(*before);
  expected[1] -= 0.25f;
  expected[4] -= 1.0f;
  expected[7] -= 0.5f;
  const std::vector<float> rows = RowsOf(*after);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_FLOAT_EQ(rows[i], expected[i]) << i;
}

// The pushes of one step of several workers, with keys that overlap in part.
struct StepOfWorkers {
  std::vector<std::vector<TestJob::Gradients>> of_worker;
  std::vector<uint64_t> samples;
};

StepOfWorkers RandomStep(uint32_t workers, std::mt19937_64* random) {
  StepOfWorkers step;
  for (uint32_t worker = 0; worker < workers; ++worker) {
    std::vector<TestJob::Gradients> gradients;
    for (uint32_t table = 0; table < 2; ++table) {
      TestJob::Gradients entry;
      entry.table = table;
      std::vector<Key> keys(200);
      std::iota(keys.begin(), keys.end(), 0);
      std::shuffle(keys.begin(), keys.end(), *random);
      keys.resize((*random)() % 100);
      entry.keys = keys;
      std::normal_distribution<float> normal;
      for (size_t i = 0; i < keys.size() * (table == 0 ? 4 : 3); ++i) entry.values.push_back(normal(*random));
      gradients.push_back(std::move(entry));
    }
    step.of_worker.push_back(std::move(gradients));
    step.samples.push_back(1 + (*random)() % 50);
  }
  return step;
}

std::vector<Key> FirstKeys(size_t n) {
  std::vector<Key> keys(n);
  std::iota(keys.begin(), keys.end(), 0);
  return keys;
}

TEST(Shard, OrderOfArrivalAndThreadsChangeNoBit) {
  for (const uint32_t workers : {2u, 4u}) {
    TestJob job;
    job.workers = workers;
    std::vector<float> first_result;
    for (int run = 0; run < 4; ++run) {
      TestShard server;
      ASSERT_TRUE(server.Open(job).ok());
      std::mt19937_64 data(41), order(1000 + run);
      for (uint64_t step = 0; step < 5; ++step) {
        const StepOfWorkers pushes = RandomStep(workers, &data);
        std::vector<uint32_t> ranks(workers);
        std::iota(ranks.begin(), ranks.end(), 0);
        std::shuffle(ranks.begin(), ranks.end(), order);
        const auto push = [&](uint32_t rank) {
          EXPECT_TRUE(server.Push(job.Push(step, pushes.of_worker[rank], rank, pushes.samples[rank])).ok());
        };
        if (run == 3) {
          std::vector<std::thread> threads;
          for (const uint32_t rank : ranks) threads.emplace_back(push, rank);
          for (std::thread& thread : threads) thread.join();
        } else {
          for (const uint32_t rank : ranks) push(rank);
        }
      }
      const auto rows = server.Pull(job.Pull(5, {{0, FirstKeys(200)}, {1, FirstKeys(200)}}));
      ASSERT_TRUE(rows.ok()) << rows.status();
      std::vector<float> result = RowsOf(*rows, 0);
      const std::vector<float> second = RowsOf(*rows, 1);
      result.insert(result.end(), second.begin(), second.end());
      if (run == 0) first_result = result;
      EXPECT_EQ(result, first_result) << "workers " << workers << ", run " << run;
    }
  }
}

TEST(Shard, SumsOverWorkersAgreeWithADoublePrecisionModel) {
  TestJob job;
  job.workers = 4;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  const auto initial = server.Pull(job.Pull(0, {{0, FirstKeys(200)}}));
  ASSERT_TRUE(initial.ok());
  const std::vector<float> start = RowsOf(*initial);
  std::vector<double> model(start.begin(), start.end());
  std::mt19937_64 data(42);
  for (uint64_t step = 0; step < 10; ++step) {
    const StepOfWorkers pushes = RandomStep(4, &data);
    const double samples =
        static_cast<double>(std::accumulate(pushes.samples.begin(), pushes.samples.end(), uint64_t{0}));
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const TestJob::Gradients& entry = pushes.of_worker[rank][0];
      for (size_t i = 0; i < entry.keys.size(); ++i) {
        for (size_t column = 0; column < 4; ++column) {
          model[entry.keys[i] * 4 + column] -= 0.5 * entry.values[i * 4 + column] / samples;
        }
      }
      ASSERT_TRUE(server.Push(job.Push(step, pushes.of_worker[rank], rank, pushes.samples[rank])).ok());
    }
  }
  const auto rows = server.Pull(job.Pull(10, {{0, FirstKeys(200)}}));
  ASSERT_TRUE(rows.ok());
  const std::vector<float> result = RowsOf(*rows);
  for (size_t i = 0; i < result.size(); ++i) EXPECT_NEAR(result[i], model[i], 1e-5) << i;
}

// Case 22, the servers' side: the same global batches cut over 1, 2 or 4 workers and 1 or 3 servers.
TEST(Shard, WorkersAndServersChangeNoResult) {
  constexpr size_t kSamples = 8, kIdsPerSample = 3;
  const auto train = [&](uint32_t workers, uint32_t servers) {
    std::vector<std::unique_ptr<TestShard>> shards;
    std::vector<TestJob> jobs;
    for (uint32_t server = 0; server < servers; ++server) {
      TestJob job;
      job.workers = workers;
      job.shards = ShardAssignment::RowWise(servers);
      job.server = server;
      job.tables = {SgdTable("user", 4)};
      job.tables[0].mutable_optimizer()->mutable_rowwise_adagrad();
      shards.push_back(std::make_unique<TestShard>());
      EXPECT_TRUE(shards.back()->Open(job).ok());
      jobs.push_back(job);
    }
    std::mt19937_64 data(43);
    for (uint64_t step = 0; step < 200; ++step) {
      std::vector<std::vector<std::map<Key, std::vector<float>>>> sums(
          workers, std::vector<std::map<Key, std::vector<float>>>(servers));
      std::vector<uint64_t> samples(workers, 0);
      std::normal_distribution<float> normal;
      for (size_t sample = 0; sample < kSamples; ++sample) {
        const size_t worker = sample % workers;
        ++samples[worker];
        for (size_t i = 0; i < kIdsPerSample; ++i) {
          const Key key = data() % 20;
          std::vector<float>& sum = sums[worker][jobs[0].shards.ServerOf(key)][key];
          sum.resize(4);
          for (float& value : sum) value += normal(data);
        }
      }
      for (uint32_t worker = 0; worker < workers; ++worker) {
        for (uint32_t server = 0; server < servers; ++server) {
          TestJob::Gradients gradients;
          for (const auto& [key, values] : sums[worker][server]) {
            gradients.keys.push_back(key);
            gradients.values.insert(gradients.values.end(), values.begin(), values.end());
          }
          EXPECT_TRUE(shards[server]->Push(jobs[server].Push(step, {gradients}, worker, samples[worker])).ok());
        }
      }
    }
    std::vector<float> result;
    for (Key key = 0; key < 20; ++key) {
      const uint32_t server = jobs[0].shards.ServerOf(key);
      const auto rows = shards[server]->Pull(jobs[server].Pull(200, {{0, {key}}}));
      EXPECT_TRUE(rows.ok()) << rows.status();
      const std::vector<float> row = RowsOf(*rows);
      result.insert(result.end(), row.begin(), row.end());
    }
    return result;
  };
  const std::vector<float> expected = train(1, 1);
  for (const uint32_t workers : {1u, 2u, 4u}) {
    for (const uint32_t servers : {1u, 3u}) {
      const std::vector<float> result = train(workers, servers);
      ASSERT_EQ(result.size(), expected.size());
      for (size_t i = 0; i < result.size(); ++i) {
        EXPECT_NEAR(result[i], expected[i], 1e-4) << workers << " workers, " << servers << " servers, " << i;
      }
    }
  }
}

TEST(Shard, PullOfTheNextStepWaitsForAllWorkers) {
  TestJob job;
  job.workers = 2;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  PullInFlight next(server.shard.get(), job.Pull(1, {{0, {3}}}));
  ASSERT_TRUE(server.Push(job.Push(0, {{0, {3}, {1, 1, 1, 1}}}, 1)).ok());
  EXPECT_FALSE(next.done());
  ASSERT_TRUE(server.Push(job.Push(0, {{0, {3}, {1, 1, 1, 1}}}, 0)).ok());
  EXPECT_TRUE(next.done());
  EXPECT_TRUE(next.Wait().ok());
  EXPECT_EQ(next.response().version(), 1u);
  // What it was answered with is what a pull after it sees.
  const auto again = server.Pull(job.Pull(1, {{0, {3}}}));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(RowsOf(next.response()), RowsOf(*again));
}

TEST(Shard, PullOfAnEarlierStepIsRefused) {
  const TestJob job;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  ASSERT_TRUE(server.Push(job.Push(0, {})).ok());
  const auto late = server.Pull(job.Pull(0, {{0, {3}}}));
  EXPECT_TRUE(absl::IsFailedPrecondition(late.status())) << late.status();
}

// Cases 7, 8, 10 and 46.
TEST(Shard, EmptyRequestsAreLegal) {
  TestJob job;
  job.workers = 3;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  const auto no_tables = server.Pull(job.Pull(0, {}));
  ASSERT_TRUE(no_tables.ok()) << no_tables.status();
  EXPECT_EQ(no_tables->tables_size(), 0);
  const auto no_keys = server.Pull(job.Pull(0, {{1, {}}}));
  ASSERT_TRUE(no_keys.ok()) << no_keys.status();
  EXPECT_EQ(no_keys->tables(0).dim(), 3u);
  EXPECT_EQ(no_keys->tables(0).rows().size(), 0u);
  EXPECT_EQ(no_keys->version(), 0u);
  const auto before = server.Pull(job.Pull(0, {{0, {3}}}));
  // A worker without samples weighs nothing.
  ASSERT_TRUE(server.Push(job.Push(0, {{0, {3}, {4, 4, 4, 4}}}, 0, 4)).ok());
  ASSERT_TRUE(server.Push(job.Push(0, {{0, {}, {}}}, 1, 0)).ok());
  ASSERT_TRUE(server.Push(job.Push(0, {}, 2, 0)).ok());
  const auto after = server.Pull(job.Pull(1, {{0, {3}}}));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_FLOAT_EQ(RowsOf(*after)[0], RowsOf(*before)[0] - 0.5f);
  // A step without any sample.
  for (uint32_t worker = 0; worker < 3; ++worker) ASSERT_TRUE(server.Push(job.Push(1, {}, worker, 0)).ok());
  const auto same = server.Pull(job.Pull(2, {{0, {3}}}));
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(RowsOf(*same), RowsOf(*after));
}

TEST(Shard, EveryKeyPatternIsARow) {
  TestJob job;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  const std::vector<Key> keys = AwkwardKeys();
  const auto before = server.Pull(job.Pull(0, {{0, keys}}));
  ASSERT_TRUE(before.ok()) << before.status();
  TestJob::Gradients gradients = {0, keys, {}};
  for (size_t i = 0; i < keys.size() * 4; ++i) gradients.values.push_back(static_cast<float>(i / 4 + 1));
  ASSERT_TRUE(server.Push(job.Push(0, {gradients})).ok());
  const auto after = server.Pull(job.Pull(1, {{0, keys}}));
  ASSERT_TRUE(after.ok());
  for (size_t i = 0; i < keys.size() * 4; ++i) {
    EXPECT_FLOAT_EQ(RowsOf(*after)[i], RowsOf(*before)[i] - 0.5f * gradients.values[i]) << keys[i / 4];
  }
}

// Counts of servers that do not divide the key space evenly: https://github.com/dmlc/ps-lite/issues/185
TEST(Shard, EveryKeyLivesOnExactlyOneServerAndWhatIsPushedIsPulled) {
  for (const uint32_t servers : {3u, 5u, 6u, 7u}) {
    std::vector<std::unique_ptr<TestShard>> shards;
    std::vector<TestJob> jobs;
    for (uint32_t server = 0; server < servers; ++server) {
      TestJob job;
      job.shards = ShardAssignment::RowWise(servers);
      job.server = server;
      shards.push_back(std::make_unique<TestShard>());
      ASSERT_TRUE(shards.back()->Open(job).ok());
      jobs.push_back(job);
    }
    std::vector<Key> keys = AwkwardKeys();
    for (const Key key : KeysAtRangeEdges(jobs[0].shards)) keys.push_back(key);
    std::vector<TestJob::Gradients> pushes(servers);
    std::vector<std::vector<float>> before;
    for (const Key key : keys) {
      uint32_t owners = 0;
      for (uint32_t server = 0; server < servers; ++server) {
        const auto rows = shards[server]->Pull(jobs[server].Pull(0, {{0, {key}}}));
        if (rows.ok()) {
          ++owners;
          before.push_back(RowsOf(*rows));
          pushes[server].keys.push_back(key);
          pushes[server].values.insert(pushes[server].values.end(), {1, 2, 3, 4});
        } else {
          EXPECT_TRUE(absl::IsInvalidArgument(rows.status())) << rows.status();
          EXPECT_THAT(std::string(rows.status().message()), HasSubstr("lives on server"));
        }
      }
      ASSERT_EQ(owners, 1u) << key << " of " << servers;
    }
    uint64_t rows_held = 0;
    for (uint32_t server = 0; server < servers; ++server) {
      EXPECT_FALSE(pushes[server].keys.empty());
      ASSERT_TRUE(shards[server]->Push(jobs[server].Push(0, {pushes[server]})).ok());
      rows_held += shards[server]->shard->GetUsage().rows;
    }
    EXPECT_EQ(rows_held, keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint32_t server = jobs[0].shards.ServerOf(keys[i]);
      const auto rows = shards[server]->Pull(jobs[server].Pull(1, {{0, {keys[i]}}}));
      ASSERT_TRUE(rows.ok()) << rows.status();
      for (size_t d = 0; d < 4; ++d) {
        EXPECT_FLOAT_EQ(RowsOf(*rows)[d], before[i][d] - 0.5f * static_cast<float>(d + 1)) << keys[i];
      }
    }
  }
}

TEST(Shard, EvaluationCreatesNoRow) {
  const TestJob job;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  const auto look = server.Pull(job.Pull(0, {{0, {1, 2, 3}}}, 0, /*create=*/false));
  ASSERT_TRUE(look.ok());
  EXPECT_EQ(server.shard->GetUsage().rows, 0u);
  const auto train = server.Pull(job.Pull(0, {{0, {1, 2, 3}}}));
  ASSERT_TRUE(train.ok());
  EXPECT_EQ(server.shard->GetUsage().rows, 3u);
  EXPECT_EQ(RowsOf(*look), RowsOf(*train));
}

TEST(Shard, OpenJobIsIdempotentAndRefusesAnotherConfiguration) {
  TestJob job;
  job.workers = 2;
  TestShard server;
  ASSERT_TRUE(server.Open(job, 0).ok());
  ASSERT_TRUE(server.Pull(job.Pull(0, {{0, {1, 2, 3}}})).ok());
  v1::OpenJobResponse response;
  ASSERT_TRUE(server.shard->OpenJob(job.Open(1), &response).ok());
  ASSERT_EQ(response.rows_size(), 2);
  EXPECT_EQ(response.rows(0), 3u);  // It did not start anew.

  TestJob other = job;
  other.seed = 8;
  EXPECT_TRUE(absl::IsFailedPrecondition(server.Open(other)));
  other = job;
  other.workers = 3;
  EXPECT_THAT(std::string(server.Open(other).message()), HasSubstr("workers 2, not 3"));
  other = job;
  other.first_step = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(server.Open(other)));
  v1::OpenJobRequest lying = job.Open();
  lying.mutable_context()->set_fingerprint(99);
  EXPECT_TRUE(absl::IsFailedPrecondition(server.shard->OpenJob(lying, &response)));
}

TEST(Shard, NewerEpochReplacesAndOlderOneIsRefused) {
  TestJob job;
  job.epoch = 5;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  ASSERT_TRUE(server.Pull(job.Pull(0, {{0, {1, 2, 3}}})).ok());
  PullInFlight waiting(server.shard.get(), job.Pull(1, {}));
  TestJob newer = job;
  newer.epoch = 6;
  v1::OpenJobResponse response;
  ASSERT_TRUE(server.shard->OpenJob(newer.Open(), &response).ok());
  EXPECT_EQ(response.rows(0), 0u);
  EXPECT_TRUE(absl::IsAborted(waiting.Wait())) << waiting.Wait();
  EXPECT_TRUE(absl::IsFailedPrecondition(server.Open(job)));
  EXPECT_TRUE(absl::IsFailedPrecondition(server.Pull(job.Pull(0, {})).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(server.Push(job.Push(0, {}))));
  v1::CloseJobRequest close;
  *close.mutable_context() = job.Context();
  v1::CloseJobResponse closed;
  EXPECT_TRUE(absl::IsFailedPrecondition(server.shard->CloseJob(close, &closed)));
  EXPECT_TRUE(server.Pull(newer.Pull(0, {})).ok());
}

TEST(Shard, ClosingEndsWaitingPullsAndForgetsTheRows) {
  TestJob job;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  ASSERT_TRUE(server.Pull(job.Pull(0, {{0, {1, 2, 3}}})).ok());
  PullInFlight waiting(server.shard.get(), job.Pull(1, {}));
  v1::CloseJobRequest close;
  *close.mutable_context() = job.Context();
  v1::CloseJobResponse response;
  ASSERT_TRUE(server.shard->CloseJob(close, &response).ok());
  EXPECT_TRUE(absl::IsAborted(waiting.Wait()));
  EXPECT_TRUE(server.shard->CloseJob(close, &response).ok());
  EXPECT_EQ(server.shard->GetUsage().rows, 0u);
  EXPECT_TRUE(absl::IsFailedPrecondition(server.Pull(job.Pull(0, {})).status()));
}

TEST(Shard, KeepOnlyDropsDeadJobsButNotOnesOpenedSinceTheListWasMade) {
  TestJob dead, live, young;
  live.id = "job-2";
  young.id = "job-3";
  TestShard server;
  ASSERT_TRUE(server.Open(dead).ok());
  ASSERT_TRUE(server.Open(live).ok());
  const uint64_t opened = server.shard->opened();
  ASSERT_TRUE(server.Open(young).ok());
  PullInFlight waiting(server.shard.get(), dead.Pull(1, {}));
  server.shard->KeepOnly({"job-2", "job-9"}, opened);
  EXPECT_TRUE(absl::IsAborted(waiting.Wait()));
  EXPECT_FALSE(server.Pull(dead.Pull(0, {})).ok());
  EXPECT_TRUE(server.Pull(live.Pull(0, {})).ok());
  EXPECT_TRUE(server.Pull(young.Pull(0, {})).ok());
  server.shard->KeepOnly({"job-2"}, server.shard->opened());
  EXPECT_FALSE(server.Pull(young.Pull(0, {})).ok());
}

TEST(Shard, ShutdownEndsWaitingPullsAndLaterCalls) {
  TestJob job;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  PullInFlight waiting(server.shard.get(), job.Pull(1, {}));
  server.shard->Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(waiting.Wait()));
  EXPECT_TRUE(absl::IsUnavailable(server.Pull(job.Pull(0, {})).status()));
  EXPECT_TRUE(absl::IsUnavailable(server.Push(job.Push(0, {}))));
  EXPECT_TRUE(absl::IsUnavailable(server.Open(job)));
}

TEST(Shard, CancelEndsAWaitingPullOnce) {
  TestJob job;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  PullInFlight waiting(server.shard.get(), job.Pull(1, {}));
  PullInFlight other(server.shard.get(), job.Pull(1, {}));
  server.shard->CancelPull(waiting.id());
  EXPECT_TRUE(absl::IsCancelled(waiting.Wait()));
  server.shard->CancelPull(waiting.id());
  EXPECT_FALSE(other.done());
  ASSERT_TRUE(server.Push(job.Push(0, {})).ok());
  EXPECT_TRUE(other.Wait().ok());
}

TEST(Shard, DataDirectoryBelongsToOneServer) {
  TestShard server;
  Metrics metrics;
  const auto second =
      Shard::Create({.data = server.directory.File("data"), .checkpoint_root = "", .memory_bytes = 1}, &metrics);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use by another server"));
}

// Steps of several workers in threads, with pulls ahead, cancellations, look-ups of usage and other jobs in between.
TEST(Shard, ManyThreadsTrainJobsSideBySide) {
  constexpr uint32_t kWorkers = 3;
  constexpr uint64_t kSteps = 50;
  TestShard server;
  std::vector<std::thread> threads;
  for (int j = 0; j < 2; ++j) {
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      threads.emplace_back([&server, j, worker] {
        TestJob job;
        job.id = absl::StrCat("job-", j);
        job.workers = kWorkers;
        ASSERT_TRUE(server.Open(job, worker).ok());
        for (uint64_t step = 0; step < kSteps; ++step) {
          PullInFlight cancelled(server.shard.get(), job.Pull(step + 1, {{0, {1}}}, worker));
          server.shard->CancelPull(cancelled.id());
          PullInFlight pull(server.shard.get(), job.Pull(step, {{0, {1, worker + 2}}}, worker));
          ASSERT_TRUE(pull.Wait().ok()) << pull.Wait();
          ASSERT_EQ(pull.response().version(), step);
          // Worker 0 has no samples.
          std::vector<TestJob::Gradients> rows;
          if (worker != 0) rows = {{0, {1, worker + 2}, {1, 1, 1, 1, 1, 1, 1, 1}}};
          ASSERT_TRUE(server.Push(job.Push(step, rows, worker, worker)).ok());
          server.shard->GetUsage();
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  TestJob job;
  job.id = "job-0";
  job.workers = kWorkers;
  TestShard fresh;
  ASSERT_TRUE(fresh.Open(job).ok());
  const auto start = fresh.Pull(job.Pull(0, {{0, {1}}}));
  const auto end = server.Pull(job.Pull(kSteps, {{0, {1}}}));
  ASSERT_TRUE(end.ok()) << end.status();
  // Each step: 2 gradients of 1 over 3 samples, times 0.5.
  EXPECT_NEAR(RowsOf(*end)[0], RowsOf(*start)[0] - kSteps / 3.0, 1e-4);
}

}  // namespace
}  // namespace sparrow
