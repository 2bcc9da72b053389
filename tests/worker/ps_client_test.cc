#include "worker/ps_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/edge_keys.h"
#include "tests/worker/fake_transport.h"
#include "worker/key_partition.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 7;

// Some servers, and a client of them.
class Cluster {
 public:
  Cluster(uint32_t servers, std::vector<uint32_t> dims, uint64_t chunk_bytes = 8 << 20, int held_server = -1)
      : dims_(dims) {
    std::vector<PsServer> ends;
    for (uint32_t s = 0; s < servers; ++s) {
      servers_.push_back(std::make_unique<FakeServer>(dims));
      ends.push_back({absl::StrCat("host-", s, ":70", s),
                      std::make_unique<FakeTransport>(servers_[s].get(), static_cast<int>(s) == held_server)});
    }
    PsClientOptions options;
    for (const uint32_t dim : dims) options.tables.push_back({.dim = dim});
    options.pull_chunk_bytes = chunk_bytes;
    options.push_chunk_bytes = chunk_bytes;
    options.unavailable_timeout = absl::Seconds(2);
    client_ = std::make_unique<PsClient>(options, ShardAssignment::RowWise(servers), std::move(ends));
  }

  PsClient* client() { return client_.get(); }
  FakeServer* server(uint32_t s) { return servers_[s].get(); }

  // `before` has the keys that are late; null: all are.
  KeyPartition Partition(const std::vector<std::vector<Key>>& keys, const KeyFilter* before = nullptr) {
    std::vector<std::span<const Key>> views(keys.begin(), keys.end());
    KeyPartition partition;
    client_->Partition(views, before, &partition);
    return partition;
  }

  // Rows of all tables, by table, in the order of `keys`.
  absl::StatusOr<std::vector<std::vector<float>>> Pull(const std::vector<std::vector<Key>>& keys, uint64_t step = 0) {
    const KeyPartition partition = Partition(keys);
    std::vector<std::vector<float>> rows;
    std::vector<std::span<float>> views;
    for (size_t t = 0; t < keys.size(); ++t) rows.emplace_back(keys[t].size() * dims_[t], -1.0f);
    for (std::vector<float>& table : rows) views.emplace_back(table);
    PsPull pull(client_.get());
    pull.Start({.step = step, .create = true}, &partition, views);
    const absl::Status status = pull.Finish();
    if (!status.ok()) return status;
    std::vector<std::vector<float>> ordered = rows;
    for (uint32_t t = 0; t < keys.size(); ++t) {
      const std::span<const uint32_t> position = partition.position(t);
      for (size_t i = 0; i < position.size(); ++i) {
        EXPECT_EQ(partition.keys(t)[position[i]], keys[t][i]);
        std::copy_n(rows[t].begin() + position[i] * dims_[t], dims_[t], ordered[t].begin() + i * dims_[t]);
      }
    }
    return ordered;
  }

  absl::Status Push(const std::vector<std::vector<Key>>& keys, float gradient, uint64_t step = 0) {
    const KeyPartition partition = Partition(keys);
    std::vector<std::vector<float>> gradients;
    std::vector<std::span<const float>> views;
    for (size_t t = 0; t < keys.size(); ++t) gradients.emplace_back(keys[t].size() * dims_[t], gradient);
    for (const std::vector<float>& table : gradients) views.emplace_back(table);
    PsPush push(client_.get());
    push.Start({.step = step, .samples = 3}, partition, views);
    return push.Finish();
  }

 private:
  const std::vector<uint32_t> dims_;
  std::vector<std::unique_ptr<FakeServer>> servers_;
  std::unique_ptr<PsClient> client_;
};

std::vector<Key> RandomKeys(size_t n, std::mt19937_64* random) {
  std::unordered_set<Key> seen;
  std::vector<Key> keys;
  while (keys.size() < n) {
    const Key key = (*random)();
    if (seen.insert(key).second) keys.push_back(key);
  }
  return keys;
}

class PsClientOverServers : public ::testing::TestWithParam<uint32_t> {};

TEST_P(PsClientOverServers, PulledRowsAreThoseOfTheKeysInTheCallersOrder) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  Cluster cluster(GetParam(), {4, 1, 7});
  std::vector<std::vector<Key>> keys = {RandomKeys(5000, &random), {}, AwkwardKeys()};
  const auto rows = cluster.Pull(keys);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const std::vector<uint32_t> dims = {4, 1, 7};
  for (uint32_t t = 0; t < 3; ++t) {
    for (size_t i = 0; i < keys[t].size(); ++i) {
      for (uint32_t d = 0; d < dims[t]; ++d) {
        ASSERT_EQ((*rows)[t][i * dims[t] + d], FakeServer::InitialValue(t, keys[t][i], d)) << t << " " << i << " " << d;
      }
    }
  }
}

TEST_P(PsClientOverServers, EveryKeyGoesToExactlyOneServerAndItIsTheShardMapsOne) {
  std::mt19937_64 random(kSeed);
  Cluster cluster(GetParam(), {2});
  const ShardAssignment shards = ShardAssignment::RowWise(GetParam());
  std::vector<Key> keys = AwkwardKeys();
  for (const Key key : KeysAtRangeEdges(shards)) keys.push_back(key);
  for (const Key key : RandomKeys(3000, &random)) keys.push_back(key);
  ASSERT_TRUE(cluster.Push({keys}, 1).ok());
  size_t total = 0;
  for (uint32_t s = 0; s < GetParam(); ++s) {
    for (const auto& [table, key] : cluster.server(s)->keys()) EXPECT_EQ(shards.ServerOf(key), s) << key;
    total += cluster.server(s)->keys().size();
  }
  EXPECT_EQ(total, keys.size());
  const auto rows = cluster.Pull({keys}, 1);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ((*rows)[0][i * 2], FakeServer::InitialValue(0, keys[i], 0) + 1) << keys[i];
  }
}

// https://github.com/pytorch/FBGEMM/pull/3658
TEST(PsClient, KeysThatAllLiveOnOneOfEightServersAreReadAndWrittenThere) {
  std::mt19937_64 random(kSeed);
  Cluster cluster(8, {3, 2});
  const ShardAssignment shards = ShardAssignment::RowWise(8);
  std::vector<Key> keys;
  while (keys.size() < 500) {
    const Key key = random();
    if (shards.ServerOf(key) == 5) keys.push_back(key);
  }
  ASSERT_TRUE(cluster.Push({keys, {}}, 0.5).ok());
  const auto rows = cluster.Pull({keys, {}}, 1);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (size_t i = 0; i < keys.size(); ++i) {
    for (uint32_t d = 0; d < 3; ++d) {
      ASSERT_EQ((*rows)[0][i * 3 + d], FakeServer::InitialValue(0, keys[i], d) + 0.5f) << keys[i];
    }
  }
  for (uint32_t s = 0; s < 8; ++s) EXPECT_EQ(cluster.server(s)->keys().size(), s == 5 ? keys.size() : 0u) << s;
}

TEST_P(PsClientOverServers, PushedGradientsArriveAtTheirRows) {
  std::mt19937_64 random(kSeed);
  Cluster cluster(GetParam(), {3}, /*chunk_bytes=*/1000);
  const std::vector<std::vector<Key>> keys = {RandomKeys(2000, &random)};
  ASSERT_TRUE(cluster.Push(keys, 0.5).ok());
  const auto rows = cluster.Pull(keys, 1);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (size_t i = 0; i < keys[0].size(); ++i) {
    ASSERT_EQ((*rows)[0][i * 3 + 2], FakeServer::InitialValue(0, keys[0][i], 2) + 0.5f);
  }
}

TEST_P(PsClientOverServers, EveryServerGetsEveryPartEvenIfEmpty) {
  Cluster cluster(GetParam(), {3, 5});
  ASSERT_TRUE(cluster.Push({{}, {}}, 1, /*step=*/4).ok());
  for (uint32_t s = 0; s < GetParam(); ++s) EXPECT_EQ(cluster.server(s)->parts(4), std::make_pair(1u, 1u));
}

TEST_P(PsClientOverServers, EveryServerIsPulledFromEvenForNoKey) {
  Cluster cluster(GetParam(), {3});
  ASSERT_TRUE(cluster.Pull({{}}).ok());
  for (uint32_t s = 0; s < GetParam(); ++s) EXPECT_EQ(cluster.server(s)->pulls(), 1);
}

INSTANTIATE_TEST_SUITE_P(Servers, PsClientOverServers, ::testing::Values(1, 3, 5, 6, 7));

TEST(PsClient, NoMessageIsMuchLargerThanAChunk) {
  std::mt19937_64 random(kSeed);
  const uint64_t chunk = 4096;
  Cluster cluster(3, {16, 1}, chunk);
  const std::vector<std::vector<Key>> keys = {RandomKeys(3000, &random), RandomKeys(3000, &random)};
  ASSERT_TRUE(cluster.Pull(keys).ok());
  ASSERT_TRUE(cluster.Push(keys, 1).ok());
  for (uint32_t s = 0; s < 3; ++s) {
    EXPECT_LT(cluster.server(s)->largest_message(), chunk + 256);
    const auto [received, expected] = cluster.server(s)->parts(0);
    EXPECT_EQ(received, expected);
    EXPECT_GT(received, 10u);
  }
}

TEST(PsClient, ARowLargerThanAChunkTravelsAlone) {
  Cluster cluster(1, {4096}, /*chunk_bytes=*/1000);
  const auto rows = cluster.Pull({{5, 6, 7}});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0][2 * 4096 + 4095], FakeServer::InitialValue(0, 7, 4095));
  EXPECT_EQ(cluster.server(0)->pulls(), 3);
}

TEST(PsClient, MessagesAreReusedByLaterStepsOfOtherShapes) {
  std::mt19937_64 random(kSeed);
  Cluster cluster(2, {3, 2}, 512);
  PsPull pull(cluster.client());
  for (const size_t n : {300, 0, 7, 500, 1}) {
    const std::vector<std::vector<Key>> keys = {RandomKeys(n, &random), RandomKeys(500 - n, &random)};
    const KeyPartition partition = cluster.Partition(keys);
    std::vector<float> first(keys[0].size() * 3), second(keys[1].size() * 2);
    const std::vector<std::span<float>> rows = {first, second};
    pull.Start({.create = true}, &partition, rows);
    ASSERT_TRUE(pull.Finish().ok());
    for (size_t i = 0; i < keys[0].size(); ++i) {
      ASSERT_EQ(first[i * 3], FakeServer::InitialValue(0, partition.keys(0)[i], 0));
    }
    for (size_t i = 0; i < keys[1].size(); ++i) {
      ASSERT_EQ(second[i * 2], FakeServer::InitialValue(1, partition.keys(1)[i], 0));
    }
  }
}

TEST(PsClient, ChunksAreAsFewAsCanBeAndOfAboutOneSize) {
  std::mt19937_64 random(kSeed);
  const std::vector<uint32_t> dims = {1, 64, 16};
  const std::vector<TableShape> shapes = {{.dim = 1}, {.dim = 64}, {.dim = 16}};
  const uint64_t largest = sizeof(Key) + 64 * sizeof(float);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const uint64_t limit = largest + random() % 20'000;
    std::vector<std::vector<Key>> keys;
    uint64_t total = 0;
    for (const uint32_t dim : dims) {
      keys.push_back(RandomKeys(random() % 400, &random));
      total += keys.back().size() * (sizeof(Key) + dim * sizeof(float));
    }
    std::vector<std::span<const Key>> views(keys.begin(), keys.end());
    KeyPartition partition;
    partition.Build(views, shapes, ShardAssignment::RowWise(1), {.pull = limit, .push = limit}, /*before=*/nullptr);
    const KeyPartition::Cut& cut = partition.pulls();
    uint64_t seen = 0;
    uint64_t smallest = limit;
    for (const KeyPartition::Chunk& chunk : cut.chunks) {
      uint64_t bytes = 0;
      for (uint32_t p = chunk.piece_begin; p < chunk.piece_end; ++p) {
        bytes += (cut.pieces[p].end - cut.pieces[p].begin) * (sizeof(Key) + dims[cut.pieces[p].table] * sizeof(float));
      }
      EXPECT_LE(bytes, limit);
      seen += bytes;
      if (&chunk != &cut.chunks.back()) smallest = std::min(smallest, bytes);
    }
    EXPECT_EQ(seen, total);
    const uint64_t fewest = std::max<uint64_t>(1, (total + limit - 1) / limit);
    // A chunk leaves less than a row's room, so that what is left over in the end is seldom a chunk of its own.
    EXPECT_LE(cut.chunks.size(), std::max<uint64_t>(1, (total + limit - largest) / (limit - largest + 1)) + 1);
    if (cut.chunks.size() > 1) {
      EXPECT_GE(smallest + 2 * largest, total / (fewest + 1));
    }
  }
}

TEST(PsClient, RowsThatTheStepBeforeMayForgetAreNotAskedForAhead) {
  std::mt19937_64 random(kSeed);
  const std::vector<std::vector<Key>> keys = {RandomKeys(300, &random), RandomKeys(300, &random)};
  const std::vector<std::span<const Key>> views(keys.begin(), keys.end());
  const std::vector<TableShape> tables = {{.dim = 4}, {.dim = 4, .evicts = true}};
  const KeyFilter before(1024);
  KeyPartition partition;
  partition.Build(views, tables, ShardAssignment::RowWise(3), {.pull = 1000, .push = 1000}, &before);
  std::vector<uint64_t> early(2), late(2);
  for (const KeyPartition::Chunk& chunk : partition.pulls().chunks) {
    for (uint32_t p = chunk.piece_begin; p < chunk.piece_end; ++p) {
      const KeyPartition::Piece& piece = partition.pulls().pieces[p];
      (chunk.late ? late : early)[piece.table] += piece.end - piece.begin;
    }
  }
  EXPECT_EQ(early, (std::vector<uint64_t>{300, 0}));
  EXPECT_EQ(late, (std::vector<uint64_t>{0, 300}));
}

TEST(PsClient, RowsThatArePendingAreAskedForAgainAndAllArriveInTheirPlace) {
  std::mt19937_64 random(kSeed);
  Cluster cluster(2, {3, 2}, 512);
  PsPull pull(cluster.client());
  for (const size_t n : {300, 0, 40}) {
    const std::vector<std::vector<Key>> keys = {RandomKeys(n, &random), RandomKeys(50, &random)};
    KeyFilter before(keys[0].size());
    before.Add(0, std::span(keys[0]).first(keys[0].size() / 4));
    const KeyPartition partition = cluster.Partition(keys, &before);
    std::vector<float> first(keys[0].size() * 3), second(keys[1].size() * 2);
    const std::vector<std::span<float>> rows = {first, second};
    pull.Start({.create = true, .ahead = true}, &partition, rows);
    ASSERT_TRUE(pull.Finish().ok());
    for (size_t i = 0; i < keys[0].size(); ++i) {
      ASSERT_EQ(first[i * 3 + 2], FakeServer::InitialValue(0, partition.keys(0)[i], 2)) << i;
    }
    for (size_t i = 0; i < keys[1].size(); ++i) {
      ASSERT_EQ(second[i * 2 + 1], FakeServer::InitialValue(1, partition.keys(1)[i], 1)) << i;
    }
  }
  for (uint32_t s = 0; s < 2; ++s) {
    EXPECT_GT(cluster.server(s)->pulls_ahead(), 3) << "early keys are pulled ahead";
    EXPECT_GT(cluster.server(s)->pulls(), cluster.server(s)->pulls_ahead());
  }
}

TEST(PsClient, APushWhoseAcknowledgementWasLostIsRepeatedAndAppliedOnce) {
  Cluster cluster(1, {2});
  for (uint64_t step = 0; step < 5; ++step) {
    cluster.server(0)->DropAcknowledgements(step % 2 == 0 ? 2 : 0);
    ASSERT_TRUE(cluster.Push({{11, 12}}, 1, step).ok());
  }
  EXPECT_EQ(cluster.server(0)->pushes(), 5 + 3 * 2);
  const auto rows = cluster.Pull({{11}}, 5);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ((*rows)[0][0], FakeServer::InitialValue(0, 11, 0) + 5);
}

TEST(PsClient, APullIsRepeatedWhileTheServerIsUnavailable) {
  Cluster cluster(3, {2});
  cluster.server(1)->FailPulls(3);
  const auto rows = cluster.Pull({{1, 2, 3, 4, 5, 6, 7, 8}});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(cluster.server(1)->pulls(), 4);
}

TEST(PsClient, AServerThatStaysAwayIsNamedWithItsAddress) {
  Cluster cluster(3, {2});
  cluster.server(2)->FailPulls(1 << 20);
  const absl::Time start = absl::Now();
  const absl::Status status = cluster.Pull({{1, 2, 3, 4, 5, 6, 7, 8}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("parameter server 2 at host-2:702: pull"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(PsClient, AnErrorThatIsNotUnavailableIsFinalAtOnceAndEndsTheOtherCalls) {
  Cluster cluster(2, {2}, 8 << 20, /*held_server=*/1);  // Server 1 never answers a pull.
  cluster.server(0)->SetPullError(absl::FailedPreconditionError("another epoch"));
  const absl::Status status = cluster.Pull({{1, 2, 3, 4, 5, 6, 7, 8}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("parameter server 0 at host-0:700: pull: another epoch"));
  EXPECT_EQ(cluster.server(0)->pulls(), 1);
}

TEST(PsClient, CancelEndsAWaitingPull) {
  Cluster cluster(2, {2}, 8 << 20, /*held_server=*/0);
  std::thread canceller([&] {
    absl::SleepFor(absl::Milliseconds(50));
    cluster.client()->Cancel();
  });
  const absl::Status status = cluster.Pull({{1, 2, 3}}).status();
  canceller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

TEST(PsClient, APullThatIsNotFinishedEndsWithItsOwner) {
  Cluster cluster(2, {2}, 8 << 20, /*held_server=*/0);
  const std::vector<std::vector<Key>> keys = {{1, 2, 3}};
  const KeyPartition partition = cluster.Partition(keys);
  std::vector<float> room(keys[0].size() * 2);
  const std::vector<std::span<float>> rows = {room};
  PsPull pull(cluster.client());
  pull.Start({.create = true}, &partition, rows);
}

}  // namespace
}  // namespace sparrow
