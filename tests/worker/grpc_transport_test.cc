// A worker's client and real servers over loopback TCP: batches larger than any message, wrong addresses, servers that
// go.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/rpc.h"
#include "embedding/row_codec.h"
#include "server/service.h"
#include "tests/server/shard_fixture.h"
#include "worker/ps_client.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

// A shard and its port.
struct ListeningShard {
  ListeningShard() : service(MakeParameterServerService(server.shard.get())) { Listen("127.0.0.1:0"); }
  ~ListeningShard() { Stop(); }

  void Listen(const std::string& address) {
    auto started = StartGrpcServer(address, {service.get()});
    CHECK(started.ok()) << started.status();
    grpc = *std::move(started);
  }
  void Stop() {
    if (grpc.server == nullptr) return;
    grpc.server->Shutdown(DeadlineAfter(absl::Seconds(5)));
    grpc.server.reset();
  }

  TestShard server;
  std::unique_ptr<grpc::Service> service;
  ListeningServer grpc;
};

class GrpcCluster {
 public:
  GrpcCluster(uint32_t servers, std::vector<v1::TableConfig> tables, uint64_t chunk_bytes,
              RowType type = RowType::kFloat32) {
    job_.tables = std::move(tables);
    job_.shards = ShardAssignment::RowWise(servers);
    std::vector<PsServer> ends;
    for (uint32_t s = 0; s < servers; ++s) {
      shards_.push_back(std::make_unique<ListeningShard>());
      auto transport = GrpcTransportFactory(absl::Seconds(10))(shards_.back()->grpc.address);
      CHECK(transport.ok()) << transport.status();
      ends.push_back({shards_.back()->grpc.address, *std::move(transport)});
    }
    PsClientOptions options;
    options.context = job_.Context();
    for (const v1::TableConfig& table : job_.tables) {
      const uint64_t record_bytes = ParseTableConfig(table, job_.seed)->Layout().record_bytes();
      options.tables.push_back({.dim = table.dim(), .record_floats = static_cast<uint32_t>(record_bytes / 4)});
    }
    options.unavailable_timeout = absl::Seconds(1);
    options.pull_type = options.push_type = type;
    options.pull_chunk_bytes = chunk_bytes;
    options.push_chunk_bytes = chunk_bytes;
    client_ = std::make_unique<PsClient>(options, job_.shards, std::move(ends));
    const auto opened = client_->OpenJob(job_.Open());
    CHECK(opened.ok()) << opened.status();
  }

  PsClient* client() { return client_.get(); }
  ListeningShard* shard(uint32_t s) { return shards_[s].get(); }

  absl::Status Pull(uint64_t step, const std::vector<Key>& keys, std::vector<float>* rows) {
    const std::vector<std::span<const Key>> views = {keys};
    KeyPartition partition;
    client_->Partition(views, /*before=*/nullptr, &partition);
    rows->assign(keys.size() * job_.tables[0].dim(), -1.0f);
    const std::vector<std::span<float>> out = {*rows};
    PsPull pull(client_.get());
    pull.Start({.step = step, .create = true}, &partition, out);
    return pull.Finish();
  }
  absl::Status Push(uint64_t step, const std::vector<Key>& keys, const std::vector<float>& gradients,
                    uint64_t* saturated = nullptr) {
    const std::vector<std::span<const Key>> views = {keys};
    KeyPartition partition;
    client_->Partition(views, /*before=*/nullptr, &partition);
    const std::vector<std::span<const float>> in = {gradients};
    PsPush push(client_.get());
    push.Start({.step = step, .samples = 2}, partition, in);
    if (saturated != nullptr) *saturated = push.saturated();
    return push.Finish();
  }

  // Of all rows of the only table: what a batch's keys are cut into, and where each row is then.
  KeyPartition RecordsOf(const std::vector<Key>& keys) {
    const std::vector<std::span<const Key>> views = {keys};
    KeyPartition partition;
    client_->PartitionRecords(views, /*before=*/nullptr, &partition);
    return partition;
  }
  absl::Status Borrow(uint64_t step, const KeyPartition& keys, std::vector<float>* records) {
    records->assign(keys.rows() * client_->options().tables[0].record_floats, -1.0f);
    const std::vector<std::span<float>> out = {*records};
    PsPull pull(client_.get());
    pull.Start({.step = step, .create = true, .records = true}, &keys, out);
    return pull.Finish();
  }
  static std::vector<std::span<const char>> BytesOf(const std::vector<float>& records) {
    return {{reinterpret_cast<const char*>(records.data()), records.size() * sizeof(float)}};
  }

 private:
  TestJob job_;
  std::vector<std::unique_ptr<ListeningShard>> shards_;
  std::unique_ptr<PsClient> client_;
};

// 4,500 rows of 16 KiB are 70 MiB, above what a message may hold:
// https://github.com/sql-machine-learning/elasticdl/issues/571
class LargeBatch : public ::testing::TestWithParam<uint64_t> {};

TEST_P(LargeBatch, TravelsInChunksBothWays) {
  constexpr uint32_t kDim = 4096;
  GrpcCluster cluster(1, {SgdTable("wide", kDim)}, GetParam());
  std::vector<Key> keys(4500);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * 7919;
  ASSERT_GT(keys.size() * kDim * sizeof(float), static_cast<size_t>(kMessageBytesMax));
  std::vector<float> before, after;
  const absl::Status pulled = cluster.Pull(0, keys, &before);
  ASSERT_TRUE(pulled.ok()) << pulled;
  std::vector<float> gradients(before.size());
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(i % 5);
  const absl::Status pushed = cluster.Push(0, keys, gradients);
  ASSERT_TRUE(pushed.ok()) << pushed;
  const absl::Status again = cluster.Pull(1, keys, &after);
  ASSERT_TRUE(again.ok()) << again;
  for (size_t i = 0; i < after.size(); ++i) {
    ASSERT_FLOAT_EQ(after[i], before[i] - 0.5f * gradients[i] / 2) << i;
  }
}

// By default, and at the most that is allowed.
INSTANTIATE_TEST_SUITE_P(Chunks, LargeBatch, ::testing::Values(PsClientOptions().push_chunk_bytes, kChunkBytesMax));

// Lent, changed, written back, changed again and returned, in many messages to several servers.
TEST(GrpcTransport, RecordsTravelBothWays) {
  constexpr uint32_t kDim = 20;
  for (const uint32_t servers : {1u, 3u}) {
    GrpcCluster cluster(servers, {SgdTable("user", kDim)}, /*chunk_bytes=*/4000);
    std::vector<Key> keys(1000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * 7919;
    const KeyPartition partition = cluster.RecordsOf(keys);
    std::vector<float> records;
    ASSERT_TRUE(cluster.Borrow(0, partition, &records).ok());
    // Changes the weights, and nothing of the four numbers behind them.
    const auto change = [&] {
      for (size_t i = 0; i < records.size(); ++i) records[i] += i % (kDim + 4) < kDim ? 0.5f : 0.0f;
    };
    PsPush push(cluster.client());
    push.StartReturn({.step = 0}, cluster.RecordsOf({}), GrpcCluster::BytesOf({}));
    ASSERT_TRUE(push.Finish().ok());
    change();
    push.StartWriteBack(1, partition, GrpcCluster::BytesOf(records));
    absl::Status status = push.Finish();
    ASSERT_TRUE(status.ok()) << status;
    push.StartComplete(1);
    status = push.Finish();
    ASSERT_TRUE(status.ok()) << status;
    std::vector<float> rows;
    ASSERT_TRUE(cluster.Pull(1, keys, &rows).ok());
    ASSERT_EQ(rows.size() / kDim, records.size() / (kDim + 4));
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], records[i / kDim * (kDim + 4) + i % kDim]) << i;
    change();
    push.StartReturn({.step = 1}, partition, GrpcCluster::BytesOf(records));
    status = push.Finish();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(push.bytes(), keys.size() * (sizeof(Key) + (kDim + 4) * sizeof(float)));
    std::vector<float> again;
    ASSERT_TRUE(cluster.Borrow(2, partition, &again).ok());
    EXPECT_TRUE(std::memcmp(again.data(), records.data(), records.size() * sizeof(float)) == 0);
  }
}

// https://github.com/meta-pytorch/torchrec/issues/3187
TEST(GrpcTransport, RowsAndGradientsOfEachTypeAreThoseOfThatTypeAndWhatIsTooLargeIsCounted) {
  const std::vector<Key> keys = {4, 9, 16, 25};
  std::vector<float> gradients(keys.size() * 3, 0.25f);
  gradients[4] = 1e5;
  std::vector<float> start;
  for (const RowType type : {RowType::kFloat32, RowType::kBfloat16, RowType::kFloat16, RowType::kInt8}) {
    SCOPED_TRACE(static_cast<int>(type));
    GrpcCluster cluster(1, {SgdTable("user", 3)}, 100, type);
    const auto rounded = [type](const std::vector<float>& rows) {
      std::string bytes(rows.size() / 3 * RowWireBytes(type, 3), '\0');
      uint64_t saturated = 0;
      EncodeRowsCpu(type, rows, 3, bytes.data(), &saturated);
      std::vector<float> result(rows.size());
      DecodeRowsCpu(type, bytes.data(), rows.size() / 3, 3, result);
      return result;
    };
    std::vector<float> rows;
    const absl::Status pulled = cluster.Pull(0, keys, &rows);
    ASSERT_TRUE(pulled.ok()) << pulled;
    if (type == RowType::kFloat32) start = rows;
    EXPECT_EQ(rows, rounded(start));
    uint64_t saturated = 0;
    const absl::Status pushed = cluster.Push(0, keys, gradients, &saturated);
    ASSERT_TRUE(pushed.ok()) << pushed;
    EXPECT_EQ(saturated, type == RowType::kFloat16 ? 1u : 0u);
    ASSERT_TRUE(cluster.Pull(1, keys, &rows).ok());
    const std::vector<float> sent = rounded(gradients);
    std::vector<float> expected = start;
    for (size_t i = 0; i < expected.size(); ++i) expected[i] -= 0.5f * sent[i] / 2;
    expected = rounded(expected);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(rows[i], expected[i]) << i;
  }
}

// https://github.com/PaddlePaddle/Paddle/issues/18575
TEST(GrpcTransport, AnAddressWhereNobodyListensIsNamedAfterTheConnectTimeout) {
  const absl::Time start = absl::Now();
  for (const char* address : {"127.0.0.1:1", "no-such-host.invalid:7000"}) {
    const auto transport = GrpcTransportFactory(absl::Milliseconds(300))(address);
    EXPECT_TRUE(absl::IsUnavailable(transport.status())) << transport.status();
    EXPECT_THAT(std::string(transport.status().message()), HasSubstr(address));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(GrpcTransport, AServerThatGoesIsNamedWithItsAddressInSeconds) {
  GrpcCluster cluster(2, {SgdTable("user", 4)}, 8 << 20);
  const std::vector<Key> keys = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> rows;
  ASSERT_TRUE(cluster.Pull(0, keys, &rows).ok());
  const std::string address = cluster.shard(1)->grpc.address;
  cluster.shard(1)->Stop();
  const absl::Time start = absl::Now();
  const absl::Status status = cluster.Pull(0, keys, &rows);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("parameter server 1 at ", address)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(GrpcTransport, AServerThatIsBackOnItsPortInTimeIsUsedAgain) {
  GrpcCluster cluster(1, {SgdTable("user", 4)}, 8 << 20);
  const std::vector<Key> keys = {1, 2, 3};
  std::vector<float> before, after;
  ASSERT_TRUE(cluster.Pull(0, keys, &before).ok());
  const std::string address = cluster.shard(0)->grpc.address;
  cluster.shard(0)->Stop();
  cluster.shard(0)->Listen(address);
  const absl::Status status = cluster.Pull(0, keys, &after);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace sparrow
