// Pushes in parts: repeated, in any order, from many threads, refused; and those that the disk has no room for.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

std::vector<Key> KeysFrom(Key first, size_t n) {
  std::vector<Key> keys(n);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

TEST(ShardPush, RepeatedPartsAreAcknowledgedAndChangeNothing) {
  TestJob job;
  job.workers = 2;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  const auto before = server.Pull(job.Pull(0, {{0, {3}}}));
  ASSERT_TRUE(before.ok());
  const v1::PushRequest push = job.Push(0, {{0, {3}, {2, 2, 2, 2}}}, 0);
  v1::PushResponse response;
  ASSERT_TRUE(server.shard->Push(push, &response).ok());
  EXPECT_FALSE(response.duplicate());
  ASSERT_TRUE(server.shard->Push(push, &response).ok());  // Before the step is applied ...
  EXPECT_TRUE(response.duplicate());
  ASSERT_TRUE(server.shard->Push(job.Push(0, {}, 1), &response).ok());
  EXPECT_FALSE(response.duplicate());
  ASSERT_TRUE(server.shard->Push(push, &response).ok());  // ... and after.
  EXPECT_TRUE(response.duplicate());
  const auto after = server.Pull(job.Pull(1, {{0, {3}}}));
  ASSERT_TRUE(after.ok());
  for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(RowsOf(*after)[i], RowsOf(*before)[i] - 0.5f * 2 / 2);
}

TEST(ShardPush, PartsInAnyOrderMakeOnePush) {
  TestJob job;
  std::vector<float> whole;
  for (const std::vector<uint32_t>& order : std::vector<std::vector<uint32_t>>{{}, {0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
    TestShard server;
    ASSERT_TRUE(server.Open(job).ok());
    if (order.empty()) {
      ASSERT_TRUE(server.Push(job.Push(0, {{0, {1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}, {1, {7}, {9, 9, 9}}}, 0, 3)).ok());
    }
    for (const uint32_t part : order) {
      v1::PushRequest push = part == 0   ? job.Push(0, {{0, {1}, {1, 2, 3, 4}}}, 0, 3)
                             : part == 1 ? job.Push(0, {{0, {2}, {5, 6, 7, 8}}}, 0, 3)
                                         : job.Push(0, {{1, {7}, {9, 9, 9}}}, 0, 3);
      push.set_part(part);
      push.set_parts(3);
      ASSERT_TRUE(server.Push(push).ok());
      v1::PushResponse response;
      ASSERT_TRUE(server.shard->Push(push, &response).ok());
      EXPECT_TRUE(response.duplicate());
    }
    const auto rows = server.Pull(job.Pull(1, {{0, {1, 2}}, {1, {7}}}));
    ASSERT_TRUE(rows.ok()) << rows.status();
    std::vector<float> result = RowsOf(*rows, 0);
    const std::vector<float> second = RowsOf(*rows, 1);
    result.insert(result.end(), second.begin(), second.end());
    if (order.empty()) whole = result;
    EXPECT_EQ(result, whole);
  }
}

// Part `part` of `parts` of a push: every parts-th of its rows.
v1::PushRequest PartOf(const TestJob& job, uint64_t step, const TestJob::Gradients& whole, uint32_t part,
                       uint32_t parts, uint64_t samples) {
  const size_t dim = whole.values.size() / whole.keys.size();
  TestJob::Gradients own = {.table = whole.table, .keys = {}, .values = {}};
  for (size_t i = part; i < whole.keys.size(); i += parts) {
    own.keys.push_back(whole.keys[i]);
    own.values.insert(own.values.end(), whole.values.begin() + i * dim, whole.values.begin() + (i + 1) * dim);
  }
  v1::PushRequest push = job.Push(step, {own}, 0, samples);
  push.set_part(part);
  push.set_parts(parts);
  return push;
}

TEST(ShardPush, WhileALoneWorkersStepIsAppliedInPartNobodyReadsItsRows) {
  const TestJob job;
  TestShard server;
  ASSERT_TRUE(server.Open(job).ok());
  const TestJob::Gradients whole = {0, {1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}};
  ASSERT_TRUE(server.Pull(job.Pull(0, {{0, {1, 2}}})).ok());
  PullInFlight next(server.shard.get(), job.Pull(1, {{0, {1, 2}}}));
  ASSERT_TRUE(server.Push(PartOf(job, 0, whole, 1, 2, 1)).ok());
  for (const bool create : {true, false}) {
    const absl::Status read = server.Pull(job.Pull(0, {{0, {1}}}, 0, create)).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(read)) << read;
    EXPECT_THAT(std::string(read.message()), HasSubstr("a push of step 0 has changed rows"));
  }
  v1::SaveTablesRequest save;
  *save.mutable_context() = job.Context();
  save.set_directory("");
  v1::SaveTablesResponse saved;
  const absl::Status save_status = server.shard->SaveTables(save, &saved);
  EXPECT_TRUE(absl::IsFailedPrecondition(save_status)) << save_status;
  EXPECT_FALSE(next.done());
  ASSERT_TRUE(server.Push(PartOf(job, 0, whole, 0, 2, 1)).ok());
  EXPECT_TRUE(next.Wait().ok());
  EXPECT_EQ(next.response().version(), 1u);
}

TEST(ShardPush, ARefusedPartCanBeSentAgainAsItShouldBe) {
  const TestJob job;
  const TestJob::Gradients whole = {0, {1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}};
  TestJob::Gradients bad = whole;
  bad.values[5] = std::nanf("");
  TestShard in_parts, at_once;
  for (TestShard* server : {&in_parts, &at_once}) {
    ASSERT_TRUE(server->Open(job).ok());
  }
  ASSERT_TRUE(in_parts.Push(PartOf(job, 0, whole, 0, 2, 4)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(in_parts.Push(PartOf(job, 0, bad, 1, 2, 4))));
  ASSERT_TRUE(in_parts.Push(PartOf(job, 0, whole, 1, 2, 4)).ok());
  ASSERT_TRUE(at_once.Push(job.Push(0, {whole}, 0, 4)).ok());
  const auto rows = in_parts.Pull(job.Pull(1, {{0, {1, 2}}}));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(RowsOf(*rows), RowsOf(*at_once.Pull(job.Pull(1, {{0, {1, 2}}}))));
}

// Parts come from several threads, each of them twice, while pulls wait for the step and looks go beside.
TEST(ShardPush, PartsOfALoneWorkerFromManyThreadsAreAppliedOnceEach) {
  constexpr uint32_t kParts = 8;
  constexpr uint64_t kSteps = 60;
  const TestJob job;
  TestShard in_parts, at_once;
  for (TestShard* server : {&in_parts, &at_once}) {
    ASSERT_TRUE(server->Open(job).ok());
  }
  std::mt19937_64 random(47);
  std::normal_distribution<float> normal;
  for (uint64_t step = 0; step < kSteps; ++step) {
    TestJob::Gradients whole = {0, KeysFrom(0, 100 + random() % 400), {}};
    for (size_t i = 0; i < 4 * whole.keys.size(); ++i) whole.values.push_back(normal(random));
    ASSERT_TRUE(at_once.Push(job.Push(step, {whole}, 0, 3)).ok());
    PullInFlight next(in_parts.shard.get(), job.Pull(step + 1, {{0, whole.keys}}));
    std::atomic<uint32_t> duplicates{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (uint32_t i = 0; i < kParts; ++i) {
          v1::PushResponse response;
          if (t % 2 == 0) {
            // Before, in the middle or behind: it is one step's rows or refused.
            const auto look = in_parts.Pull(job.Pull(step, {{0, {1}}}, 0, /*create=*/false));
            EXPECT_TRUE(look.ok() || absl::IsFailedPrecondition(look.status())) << look.status();
          }
          EXPECT_TRUE(in_parts.shard->Push(PartOf(job, step, whole, (i + t) % kParts, kParts, 3), &response).ok());
          if (response.duplicate()) ++duplicates;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(duplicates, 3 * kParts);
    ASSERT_TRUE(next.Wait().ok());
    ASSERT_EQ(RowsOf(next.response()), RowsOf(*at_once.Pull(job.Pull(step + 1, {{0, whole.keys}})))) << step;
  }
}

// A push that finds no room on disk is refused before it changes a row, and the job goes on.
TEST(ShardPush, APushThatTheDiskHasNoRoomForChangesNothingAndTheJobGoesOn) {
  constexpr uint64_t kMemory = 1 << 20, kDisk = 8 << 20, kKeys = 2000;
  TestJob job;
  job.tables = {SgdTable("user", 64)};
  job.tables[0].mutable_admission()->set_probability(1);  // Rows come with their first push, not with a pull.
  TestShard server(uint64_t{64} << 20, kMemory, kDisk);
  ASSERT_TRUE(server.Open(job).ok());
  const auto keys_of = [](uint64_t step) { return KeysFrom(step * kKeys, kKeys); };
  const std::vector<float> ones(kKeys * 64, 1);
  absl::Status status;
  uint64_t step = 0;
  for (; status.ok(); ++step) {
    ASSERT_LT(step * kKeys * 64 * sizeof(float), kDisk) << "never refused";
    status = server.Push(job.Push(step, {{0, keys_of(step), ones}}));
  }
  --step;  // The one that was refused.
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (const std::string& part : {absl::StrCat("for step ", step), server.directory.File("data"),
                                  std::string("is 8388608 bytes"), std::string("no row was changed")}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  ASSERT_GT(step, 2u);
  // Rows are as `step` pushes left them, and are saved so.
  const auto rows_are_pushed = [&](uint64_t of_step, bool pushed) {
    const std::vector<Key> keys = keys_of(of_step);
    const auto rows = server.Pull(job.Pull(step, {{0, keys}}, 0, /*create=*/false));
    ASSERT_TRUE(rows.ok()) << rows.status();
    TestShard fresh;
    ASSERT_TRUE(fresh.Open(job).ok());
    std::vector<float> expected = RowsOf(*fresh.Pull(job.Pull(0, {{0, keys}}, 0, /*create=*/false)));
    for (float& value : expected) value -= pushed ? 0.5f : 0.0f;
    EXPECT_EQ(RowsOf(*rows), expected) << of_step;
  };
  rows_are_pushed(0, true);
  rows_are_pushed(step - 1, true);
  rows_are_pushed(step, false);
  ASSERT_TRUE(MakeDirectories(server.directory.File("checkpoint")).ok());
  v1::SaveTablesRequest save;
  *save.mutable_context() = job.Context();
  save.set_directory("checkpoint");
  save.set_step(step);
  v1::SaveTablesResponse saved;
  const absl::Status save_status = server.shard->SaveTables(save, &saved);
  EXPECT_TRUE(save_status.ok()) << save_status;
  // The same step with less in it.
  const std::vector<Key> few = {0, 1};
  const absl::Status smaller = server.Push(job.Push(step, {{0, few, std::vector<float>(2 * 64, 1)}}));
  EXPECT_TRUE(smaller.ok()) << smaller;
}

}  // namespace
}  // namespace sparrow
