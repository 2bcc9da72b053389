// Each path moves its metrics, and no neighbour.

#include "server/metrics.h"

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {
namespace {

using ::testing::UnorderedElementsAreArray;

// Every sample of /metrics, without the buckets and sums of histograms, whose counts say as much.
std::map<std::string, double> Samples(const Metrics& metrics) {
  std::map<std::string, double> samples;
  for (absl::string_view line : absl::StrSplit(metrics.Text(), '\n')) {
    if (line.empty() || line[0] == '#' || absl::StrContains(line, "_bucket{") ||
        absl::StrContains(line, "_seconds_sum")) {
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> sample = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(sample.second, &value)) << line;
    samples[std::string(sample.first)] = value;
  }
  return samples;
}

class ServerMetricsTest : public ::testing::Test {
 protected:
  ServerMetricsTest() { job_.workers = 2; }

  // Names, less "sparrow_server_", with the change of each sample that `path` moved.
  template <typename Path>
  std::map<std::string, double> Moved(Path path) {
    const std::map<std::string, double> before = Samples(server_.metrics);
    path();
    std::map<std::string, double> moved;
    for (const auto& [name, value] : Samples(server_.metrics)) {
      EXPECT_TRUE(absl::StartsWith(name, "sparrow_server_")) << name;
      const auto it = before.find(name);
      EXPECT_NE(it, before.end()) << name << " is not there from the start";
      if (it != before.end() && it->second != value) moved[name.substr(15)] = value - it->second;
    }
    return moved;
  }
  using Expected = std::map<std::string, double>;

  TestJob job_;
  TestShard server_;
};

TEST_F(ServerMetricsTest, OpenAndClose) {
  EXPECT_EQ(Moved([&] { ASSERT_TRUE(server_.Open(job_).ok()); }),
            (Expected{{"jobs", 1}, {"rpc_seconds_count{method=\"open_job\"}", 1}}));
  EXPECT_EQ(Moved([&] { ASSERT_TRUE(server_.Open(job_, 1).ok()); }),
            (Expected{{"rpc_seconds_count{method=\"open_job\"}", 1}}));
  v1::CloseJobRequest close;
  *close.mutable_context() = job_.Context();
  v1::CloseJobResponse response;
  EXPECT_EQ(Moved([&] { ASSERT_TRUE(server_.shard->CloseJob(close, &response).ok()); }),
            (Expected{{"jobs", -1}, {"rpc_seconds_count{method=\"close_job\"}", 1}}));
}

TEST_F(ServerMetricsTest, PullPushAndApply) {
  ASSERT_TRUE(server_.Open(job_).ok());
  // 3 rows of 4 floats and 1 of 3.
  EXPECT_EQ(Moved([&] {
              ASSERT_TRUE(server_.Pull(job_.Pull(0, {{0, {1, 2, 3}}, {1, {7}}})).ok());
            }),
            (Expected{{"rows_pulled_total", 4},
                      {"received_bytes_total", 32},
                      {"sent_bytes_total", 60},
                      {"rpc_seconds_count{method=\"pull\"}", 1}}));
  const v1::PushRequest push = job_.Push(0, {{0, {1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}}, 0);
  EXPECT_EQ(
      Moved([&] { ASSERT_TRUE(server_.Push(push).ok()); }),
      (Expected{{"rows_pushed_total", 2}, {"received_bytes_total", 48}, {"rpc_seconds_count{method=\"push\"}", 1}}));
  EXPECT_EQ(Moved([&] { ASSERT_TRUE(server_.Push(push).ok()); }),
            (Expected{{"duplicate_parts_total", 1}, {"rpc_seconds_count{method=\"push\"}", 1}}));
  EXPECT_EQ(
      Moved([&] { ASSERT_TRUE(server_.Push(job_.Push(0, {}, 1)).ok()); }),
      (Expected{{"steps_applied_total", 1}, {"apply_seconds_count", 1}, {"rpc_seconds_count{method=\"push\"}", 1}}));
}

TEST_F(ServerMetricsTest, RowsThatAreLent) {
  job_.workers = 1;
  ASSERT_TRUE(server_.Open(job_).ok());
  v1::PullRequest pull = job_.Pull(0, {{0, {1, 2, 3}}});  // Of 4 floats and 16 bytes of metadata.
  pull.set_records(true);
  EXPECT_EQ(Moved([&] { ASSERT_TRUE(server_.Pull(pull).ok()); }),
            (Expected{{"rows_pulled_total", 3},
                      {"lent_rows", 3},
                      {"received_bytes_total", 24},
                      {"sent_bytes_total", 96},
                      {"rpc_seconds_count{method=\"pull\"}", 1}}));
  v1::PushRequest push = job_.Push(0, {});
  v1::TableRecords* returned = push.add_records();
  const std::vector<Key> keys = {2, 3};
  returned->set_keys(std::string(AsBytes(std::span<const Key>(keys))));
  returned->set_records(std::string(64, '\0'));
  push.set_parts(2);
  EXPECT_EQ(Moved([&] { ASSERT_TRUE(server_.Push(push).ok()); }),
            (Expected{{"rows_returned_total", 2},
                      {"lent_rows", -2},
                      {"received_bytes_total", 80},
                      {"rpc_seconds_count{method=\"push\"}", 1}}));
}

TEST_F(ServerMetricsTest, AdmissionAndEviction) {
  job_.workers = 1;
  job_.tables[0].mutable_admission()->set_count(2);
  job_.tables[0].mutable_eviction()->set_ttl_steps(1);
  job_.tables[0].mutable_eviction()->set_rows_max(2);
  ASSERT_TRUE(server_.Open(job_).ok());
  const auto step = [&](uint64_t number, const std::vector<Key>& keys) {
    std::map<std::string, double> moved = Moved([&] {
      ASSERT_TRUE(server_.Pull(job_.Pull(number, {{0, keys}})).ok());
      ASSERT_TRUE(server_.Push(job_.Push(number, {{0, keys, std::vector<float>(4 * keys.size(), 1.0f)}})).ok());
    });
    std::erase_if(moved, [](const auto& sample) { return !absl::StartsWith(sample.first, "table_"); });
    return moved;
  };
  EXPECT_EQ(step(0, {1, 2, 3}), (Expected{{"table_not_admitted_total", 3}, {"table_dropped_gradients_total", 3}}));
  EXPECT_EQ(step(1, {1, 2, 3}), (Expected{{"table_not_admitted_total", 3}, {"table_admitted_total", 3}}));
  EXPECT_EQ(step(2, {}), (Expected{{"table_evicted_capacity_total", 1}}));
  EXPECT_EQ(step(3, {}), (Expected{{"table_evicted_ttl_total", 2}}));
  EXPECT_EQ(step(4, {}), Expected{});
}

TEST_F(ServerMetricsTest, WeightsBeyondTheRangeOfTheirStorage) {
  job_.workers = 1;
  job_.tables[0].set_storage(v1::FLOAT16);
  ASSERT_TRUE(server_.Open(job_).ok());
  const auto moved = Moved([&] { ASSERT_TRUE(server_.Push(job_.Push(0, {{0, {3}, {-7e5f, 1, 7e5f, 1}}})).ok()); });
  EXPECT_EQ(moved.at("saturated_weights_total"), 2);
  EXPECT_EQ(moved.count("saturated_values_total"), 0u);
}

TEST_F(ServerMetricsTest, RowsWrittenToDiskByWhoWroteThem) {
  TestShard small(uint64_t{64} << 20, /*memory_bytes=*/8 << 20);
  job_.workers = 1;
  ASSERT_TRUE(small.Open(job_).ok());
  const std::string in_line = "sparrow_server_table_rows_written_total{by=\"in_line\"}";
  const std::string in_background = "sparrow_server_table_rows_written_total{by=\"background\"}";
  EXPECT_EQ(Samples(small.metrics)[in_line], 0);
  EXPECT_EQ(Samples(small.metrics)[in_background], 0);
  std::map<std::string, double> samples;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (uint64_t step = 0; absl::Now() < deadline && (samples[in_line] == 0 || samples[in_background] == 0); ++step) {
    std::vector<Key> keys(2'000);
    std::iota(keys.begin(), keys.end(), step * keys.size());
    ASSERT_TRUE(small.Pull(job_.Pull(step, {{0, keys}})).ok());
    ASSERT_TRUE(small.Push(job_.Push(step, {{0, keys, std::vector<float>(4 * keys.size(), 1.0f)}})).ok());
    samples = Samples(small.metrics);
  }
  EXPECT_GT(samples[in_line], 0);
  EXPECT_GT(samples[in_background], 0);
}

TEST_F(ServerMetricsTest, WaitingPulls) {
  ASSERT_TRUE(server_.Open(job_).ok());
  std::unique_ptr<PullInFlight> first, second, third;
  EXPECT_EQ(Moved([&] {
              first = std::make_unique<PullInFlight>(server_.shard.get(), job_.Pull(1, {}));
              second = std::make_unique<PullInFlight>(server_.shard.get(), job_.Pull(1, {}));
              third = std::make_unique<PullInFlight>(server_.shard.get(), job_.Pull(2, {}));
            }),
            (Expected{{"waiting_pulls", 3}}));
  EXPECT_EQ(Moved([&] { server_.shard->CancelPull(first->id()); }),
            (Expected{{"waiting_pulls", -1}, {"rpc_seconds_count{method=\"pull\"}", 1}}));
  ASSERT_TRUE(server_.Push(job_.Push(0, {}, 0)).ok());
  EXPECT_EQ(Moved([&] { ASSERT_TRUE(server_.Push(job_.Push(0, {}, 1)).ok()); }),
            (Expected{{"waiting_pulls", -1},
                      {"steps_applied_total", 1},
                      {"apply_seconds_count", 1},
                      {"rpc_seconds_count{method=\"pull\"}", 1},
                      {"rpc_seconds_count{method=\"push\"}", 1}}));
  EXPECT_EQ(Moved([&] { server_.shard->Shutdown(); }),
            (Expected{{"waiting_pulls", -1}, {"jobs", -1}, {"rpc_seconds_count{method=\"pull\"}", 1}}));
}

TEST_F(ServerMetricsTest, RefusalsByReason) {
  ASSERT_TRUE(server_.Open(job_).ok());
  EXPECT_EQ(
      Moved([&] {
        EXPECT_FALSE(server_.Pull(job_.Pull(0, {{0, {1, 1}}})).ok());
      }),
      (Expected{{"refused_calls_total{reason=\"invalid_argument\"}", 1}, {"rpc_seconds_count{method=\"pull\"}", 1}}));
  EXPECT_EQ(Moved([&] {
              EXPECT_FALSE(server_.Push(job_.Push(0, {{1, {1000}, {1, 2, 3}}})).ok());
            }),
            (Expected{{"refused_calls_total{reason=\"out_of_range\"}", 1}, {"rpc_seconds_count{method=\"push\"}", 1}}));
  EXPECT_EQ(Moved([&] { EXPECT_FALSE(server_.Push(job_.Push(3, {})).ok()); }),
            (Expected{{"refused_calls_total{reason=\"failed_precondition\"}", 1},
                      {"rpc_seconds_count{method=\"push\"}", 1}}));
  v1::SaveTablesRequest save;
  *save.mutable_context() = job_.Context();
  save.set_directory("absent");
  v1::SaveTablesResponse response;
  EXPECT_EQ(Moved([&] { EXPECT_FALSE(server_.shard->SaveTables(save, &response).ok()); }),
            (Expected{{"refused_calls_total{reason=\"other\"}", 1}, {"rpc_seconds_count{method=\"save_tables\"}", 1}}));
}

TEST_F(ServerMetricsTest, UsageBringsTheGaugesOfTablesUpToDate) {
  ASSERT_TRUE(server_.Open(job_).ok());
  server_.shard->GetUsage();
  ASSERT_TRUE(server_.Pull(job_.Pull(0, {{0, {1, 2, 3}}})).ok());
  std::map<std::string, double> moved = Moved([&] { server_.shard->GetUsage(); });
  EXPECT_EQ(moved["table_rows{tier=\"dram\"}"], 3);
  moved.erase("table_rows{tier=\"dram\"}");
  moved.erase("table_bytes{tier=\"dram\"}");  // Whether three rows need a new page is the table's business.
  EXPECT_EQ(moved, Expected{});
  server_.shard->Shutdown();
  server_.shard->GetUsage();
  EXPECT_EQ(Samples(server_.metrics)["sparrow_server_table_rows{tier=\"dram\"}"], 0);
}

}  // namespace
}  // namespace sparrow
