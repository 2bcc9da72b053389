// Rows of every shape and key over a real connection: pulled, pushed, saved and restored, against scalar references.

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparrow/v1/checkpoint.pb.h"
#include "tests/server/service_fixture.h"
#include "tests/support/edge_keys.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class WireRows : public ServiceFixture {
 protected:
  // Saves all tables to the checkpoint "ckpt" and gives its manifest.
  v1::Manifest Save(const TestJob& job, uint64_t step) {
    v1::SaveTablesRequest request;
    *request.mutable_context() = job.Context();
    request.set_directory("ckpt");
    request.set_step(step);
    EXPECT_TRUE(MakeDirectories(server_.directory.File("ckpt")).ok());
    grpc::ClientContext context;
    v1::SaveTablesResponse response;
    const absl::Status saved = FromGrpcStatus(stub_->SaveTables(&context, request, &response));
    EXPECT_TRUE(saved.ok()) << saved;
    v1::Manifest manifest;
    manifest.set_format(1);
    manifest.set_step(step);
    for (const v1::TableConfig& table : job.tables) *manifest.mutable_job()->add_tables() = table;
    for (const v1::SavedFile& file : response.files()) *manifest.add_files() = file;
    std::string text;
    EXPECT_TRUE(google::protobuf::TextFormat::PrintToString(manifest, &text));
    EXPECT_TRUE(WriteFileAtomically(server_.directory.File("ckpt/MANIFEST.textproto"), text).ok());
    return manifest;
  }
};

// Dimensions that are no multiple of four, beside those that are, and above 1,024; every key pattern in each.
// https://github.com/meta-pytorch/torchrec/issues/1495, https://github.com/pytorch/FBGEMM/pull/5569
TEST_F(WireRows, EveryDimensionTrainsAndComesBackFromACheckpointWithoutPadding) {
  const std::vector<uint32_t> dims = {1, 2, 3, 5, 10, 13, 16, 128, 1024, 1028, 2048, 4096};
  const std::vector<Key> keys = AwkwardKeys();
  TestJob job;
  job.tables.clear();
  std::vector<TestJob::KeysOfTable> all_keys;
  std::vector<TestJob::Gradients> gradients;
  std::mt19937_64 random(17);
  for (uint32_t t = 0; t < dims.size(); ++t) {
    job.tables.push_back(SgdTable(absl::StrCat("dim", dims[t]), dims[t]));
    job.tables.back().mutable_optimizer()->mutable_adagrad()->set_eps(0.25);
    all_keys.push_back({t, keys});
    TestJob::Gradients of_table{t, keys, {}};
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < keys.size() * dims[t]; ++i) of_table.values.push_back(normal(random));
    gradients.push_back(std::move(of_table));
  }
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  const auto before = Pull(job.Pull(0, all_keys));
  ASSERT_TRUE(before.ok()) << before.status();
  const absl::Status pushed = Push(job.Push(0, gradients, 0, 4));
  ASSERT_TRUE(pushed.ok()) << pushed;
  const auto after = Pull(job.Pull(1, all_keys));
  ASSERT_TRUE(after.ok()) << after.status();
  ASSERT_EQ(after->tables_size(), static_cast<int>(dims.size()));
  for (uint32_t t = 0; t < dims.size(); ++t) {
    ASSERT_EQ(after->tables(t).dim(), dims[t]);
    ASSERT_EQ(after->tables(t).rows().size(), keys.size() * dims[t] * sizeof(float));  // No padding on the wire.
    const std::vector<float> from = RowsOf(*before, t), to = RowsOf(*after, t);
    for (size_t i = 0; i < to.size(); ++i) {
      const double g = gradients[t].values[i] / 4.0;
      ASSERT_NEAR(to[i], from[i] - 0.5 * g / (std::fabs(g) + 0.25), 1e-6) << "dim " << dims[t] << ", " << i;
    }
  }

  const v1::Manifest manifest = Save(job, 1);
  std::map<std::string, uint64_t> bytes;
  for (const v1::SavedFile& file : manifest.files()) {
    EXPECT_EQ(file.rows(), keys.size());
    bytes[file.table()] = file.bytes();
  }
  // Nor in the file: two floats a column, weight and state, and the same small change for every table.
  const uint64_t change = bytes["dim1"] - keys.size() * 2 * sizeof(float);
  for (const uint32_t dim : dims) {
    const uint64_t floats = keys.size() * 2 * dim * sizeof(float);
    EXPECT_NEAR(static_cast<double>(bytes[absl::StrCat("dim", dim)]), static_cast<double>(floats + change), 16) << dim;
  }

  TestJob again = job;
  again.epoch = 2;
  again.first_step = 1;
  again.restore_from = "ckpt";
  const absl::Status restored = Open(again);
  ASSERT_TRUE(restored.ok()) << restored;
  const auto rows = Pull(again.Pull(1, all_keys));
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (uint32_t t = 0; t < dims.size(); ++t) EXPECT_EQ(RowsOf(*rows, t), RowsOf(*after, t)) << dims[t];
}

// https://github.com/NVIDIA/recsys-examples/issues/419: weights, m and v, as the bytes of the saved rows.
TEST_F(WireRows, TablesOfSeveralDimensionsTrainBitEqualToEachAlone) {
  const std::vector<uint32_t> dims = {4, 16, 64};
  const auto table = [](uint32_t dim) {
    v1::TableConfig config = SgdTable(absl::StrCat("dim", dim), dim);
    config.mutable_optimizer()->mutable_adam();
    return config;
  };
  const auto train = [&](const std::string& id, const std::vector<uint32_t>& of_dims) {
    TestJob job;
    job.id = id;
    job.tables.clear();
    for (const uint32_t dim : of_dims) job.tables.push_back(table(dim));
    const absl::Status opened = Open(job);
    EXPECT_TRUE(opened.ok()) << opened;
    for (uint64_t step = 0; step < 6; ++step) {
      std::vector<TestJob::Gradients> gradients;
      for (uint32_t t = 0; t < of_dims.size(); ++t) {
        std::mt19937_64 random(step * 1000 + of_dims[t]);
        std::normal_distribution<float> normal;
        TestJob::Gradients of_table{t, {}, {}};
        for (Key key = step % 3; key < 300; key += 1 + random() % 3) of_table.keys.push_back(key);
        for (size_t i = 0; i < of_table.keys.size() * of_dims[t]; ++i) of_table.values.push_back(normal(random));
        gradients.push_back(std::move(of_table));
      }
      const absl::Status pushed = Push(job.Push(step, gradients, 0, 3));
      EXPECT_TRUE(pushed.ok()) << pushed;
    }
    std::map<std::string, std::string> contents;  // By table.
    const v1::Manifest manifest = Save(job, 6);
    for (const v1::SavedFile& file : manifest.files()) {
      const auto saved = ReadFile(server_.directory.File("ckpt/" + file.name()));
      EXPECT_TRUE(saved.ok()) << saved.status();
      EXPECT_GT(file.rows(), 250u);
      contents[file.table()] = saved.ok() ? *saved : "";
    }
    return contents;
  };
  const auto together = train("together", dims);
  for (const uint32_t dim : dims) {
    const std::string name = absl::StrCat("dim", dim);
    EXPECT_TRUE(train(name, {dim}).at(name) == together.at(name)) << name;
  }
}

// https://github.com/pytorch/pytorch/pull/193408: cut to 32 bits, both would be row 5 or a negative one.
TEST_F(WireRows, IdsAboveThirtyTwoBitsAreTheirOwnRowsOrRefusedOnPullAndOnPush) {
  const TestJob job;  // Table 0 is hashed, table 1 has 1,000 rows.
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  const std::vector<Key> wide = {(Key{1} << 32) + 5, Key{1} << 31};
  const auto before = Pull(job.Pull(0, {{0, {5, wide[0], wide[1]}}, {1, {5}}}));
  ASSERT_TRUE(before.ok()) << before.status();
  for (const Key id : wide) {
    for (const absl::Status& status :
         {Pull(job.Pull(0, {{1, {id}}})).status(), Push(job.Push(0, {{1, {id}, {1, 1, 1}}}))}) {
      EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("\"item\""), HasSubstr("1000"), HasSubstr(absl::StrCat(id))));
    }
  }
  ASSERT_TRUE(Push(job.Push(0, {{0, wide, {1, 1, 1, 1, 2, 2, 2, 2}}})).ok());
  const auto after = Pull(job.Pull(1, {{0, {5, wide[0], wide[1]}}, {1, {5}}}));
  ASSERT_TRUE(after.ok()) << after.status();
  std::vector<float> expected = RowsOf(*before);
  for (size_t i = 4; i < 12; ++i) expected[i] -= i < 8 ? 0.5f : 1.0f;
  EXPECT_EQ(RowsOf(*after), expected);
  EXPECT_EQ(RowsOf(*after, 1), RowsOf(*before, 1));
}

// https://github.com/meta-pytorch/torchrec/issues/575: set to 0, it would train row 0.
TEST_F(WireRows, AnIdEqualToTheRowsIsRefusedByNameCountedAndLeavesRowZeroAsItIs) {
  TestJob job;
  job.tables = {SgdTable("tiny", 2, 10)};
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  const auto before = Pull(job.Pull(0, {{0, {0, 9}}}));
  ASSERT_TRUE(before.ok()) << before.status();
  const double refused = ServerMetrics(&server_.metrics).refused_out_of_range.Value();
  for (const absl::Status& status :
       {Pull(job.Pull(0, {{0, {3, 10}}})).status(), Push(job.Push(0, {{0, {0, 10}, {1, 1, 1, 1}}}))}) {
    EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("worker 0, step 0"), HasSubstr("\"tiny\" has 10 rows"), HasSubstr("id 10 ")));
  }
  EXPECT_EQ(ServerMetrics(&server_.metrics).refused_out_of_range.Value(), refused + 2);
  // The same step, without that id.
  ASSERT_TRUE(Push(job.Push(0, {{0, {9}, {1, 1}}})).ok());
  const auto after = Pull(job.Pull(1, {{0, {0, 9}}}));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(RowsOf(*after)[0], RowsOf(*before)[0]);
  EXPECT_EQ(RowsOf(*after)[1], RowsOf(*before)[1]);
  EXPECT_NE(RowsOf(*after)[2], RowsOf(*before)[2]);
}

// https://github.com/meta-pytorch/torchrec/pull/2750, https://github.com/meta-pytorch/torchrec/pull/4638
TEST_F(WireRows, NothingIsAnsweredWithNothingAndChangesNothing) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  const auto before = Pull(job.Pull(0, {{0, {3}}}));
  ASSERT_TRUE(before.ok()) << before.status();
  const auto none = Pull(job.Pull(0, {{0, {}}, {1, {}}}));
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->version(), 0u);
  ASSERT_EQ(none->tables_size(), 2);
  for (const v1::TableRows& rows : none->tables()) {
    EXPECT_EQ(rows.dim(), rows.table() == 0 ? 4u : 3u);
    EXPECT_EQ(rows.rows(), "");
  }
  ASSERT_TRUE(Push(job.Push(0, {{0, {}, {}}, {1, {}, {}}}, 0, 0)).ok());
  const auto after = Pull(job.Pull(1, {{0, {3}}, {1, {}}}));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(RowsOf(*after), RowsOf(*before));
  EXPECT_EQ(server_.shard->GetUsage().rows, 1u);
}

}  // namespace
}  // namespace sparrow
