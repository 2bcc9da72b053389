// Rows and gradients in each type of the wire, over a real connection: what is asked for is given, what is too large is
// counted, what is not a number is refused.

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "embedding/row_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/service_fixture.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr RowType kTypes[] = {RowType::kFloat32, RowType::kBfloat16, RowType::kFloat16, RowType::kInt8};

std::string Encoded(RowType type, const std::vector<float>& rows, uint32_t dim) {
  std::string bytes(rows.size() / dim * RowWireBytes(type, dim), '\0');
  uint64_t saturated = 0;
  EncodeRowsCpu(type, rows, dim, bytes.data(), &saturated);
  return bytes;
}
std::vector<float> Decoded(RowType type, const std::string& bytes, uint32_t dim) {
  std::vector<float> rows(bytes.size() / RowWireBytes(type, dim) * dim);
  DecodeRowsCpu(type, bytes.data(), rows.size() / dim, dim, rows);
  return rows;
}

class WireTypes : public ServiceFixture {
 protected:
  void Open(const TestJob& job) {
    const absl::Status opened = ServiceFixture::Open(job);
    ASSERT_TRUE(opened.ok()) << opened;
  }
  static void SetType(v1::PushRequest* push, RowType type, uint32_t dim) {
    for (v1::TableGradients& table : *push->mutable_tables()) {
      std::vector<float> values(table.gradients().size() / sizeof(float));
      CopyBytes(absl::string_view(table.gradients()), std::span<float>(values));
      table.set_row_type(static_cast<v1::RowType>(type));
      table.set_gradients(Encoded(type, values, dim));
    }
  }
};

// https://github.com/vllm-project/vllm/issues/55345: asked for one type, given another.
TEST_F(WireTypes, TheTypeAskedForIsTheTypeGivenInEveryDimension) {
  const std::vector<uint32_t> dims = {1, 2, 3, 7, 8, 16, 33, 64, 128, 1000, 1025, 4096};
  TestJob job;
  job.tables.clear();
  std::vector<TestJob::KeysOfTable> keys;
  for (uint32_t t = 0; t < dims.size(); ++t) {
    job.tables.push_back(SgdTable(absl::StrCat("dim", dims[t]), dims[t]));
    keys.push_back({t, {1, 2, 3, ~Key{0}, 77}});
  }
  Open(job);
  const auto plain = Pull(job.Pull(0, keys));
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (const RowType type : kTypes) {
    v1::PullRequest request = job.Pull(0, keys);
    request.set_row_type(static_cast<v1::RowType>(type));
    const auto typed = Pull(request);
    ASSERT_TRUE(typed.ok()) << typed.status();
    for (uint32_t t = 0; t < dims.size(); ++t) {
      const v1::TableRows& table = typed->tables(static_cast<int>(t));
      EXPECT_EQ(table.row_type(), request.row_type());
      EXPECT_EQ(table.dim(), dims[t]);
      EXPECT_TRUE(table.rows() == Encoded(type, RowsOf(*plain, static_cast<int>(t)), dims[t])) << dims[t];
    }
  }
}

TEST_F(WireTypes, ATypeThatNobodyKnowsIsRefusedByNumberAndTheNextCallIsServed) {
  const TestJob job;
  Open(job);
  const auto before = Pull(job.Pull(0, {{0, {5}}}));
  ASSERT_TRUE(before.ok()) << before.status();
  v1::PullRequest pull = job.Pull(0, {{0, {5}}});
  v1::PushRequest push = job.Push(0, {{0, {5}, {1, 1, 1, 1}}});
  pull.set_row_type(static_cast<v1::RowType>(9));
  push.mutable_tables(0)->set_row_type(static_cast<v1::RowType>(9));
  for (const absl::Status& status : {Pull(pull).status(), Push(push)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("row_type 9"), HasSubstr("step 0")));
  }
  const auto after = Pull(job.Pull(0, {{0, {5}}}));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(RowsOf(*after), RowsOf(*before));
}

// https://github.com/meta-pytorch/torchrec/issues/3187: above 65,504 it became infinite without a word.
TEST_F(WireTypes, AWeightBeyondFloat16IsAnsweredAsTheLargestAndCounted) {
  const TestJob job;
  Open(job);
  ASSERT_TRUE(Push(job.Push(0, {{0, {5, 6}, {-4e5, 1, 1, 4e5, 1, 1, 1, 1}}})).ok());
  v1::PullRequest pull = job.Pull(1, {{0, {5, 6}}});
  const auto exact = Pull(pull);
  ASSERT_TRUE(exact.ok()) << exact.status();
  ASSERT_GT(RowsOf(*exact)[0], 65504);
  const Counter counted = ServerMetrics(&server_.metrics).saturated_values;
  EXPECT_EQ(counted.Value(), 0);
  for (const RowType type : {RowType::kBfloat16, RowType::kInt8, RowType::kFloat16}) {
    pull.set_row_type(static_cast<v1::RowType>(type));
    const auto rows = Pull(pull);
    ASSERT_TRUE(rows.ok()) << rows.status();
    const std::vector<float> values = Decoded(type, rows->tables(0).rows(), 4);
    for (const float value : values) EXPECT_TRUE(std::isfinite(value));
    if (type != RowType::kFloat16) continue;
    EXPECT_EQ(values[0], 65504);
    EXPECT_EQ(values[3], -65504);
  }
  EXPECT_EQ(counted.Value(), 2);
}

TEST_F(WireTypes, GradientsOfEachTypeTrainAsTheFloatsThatTheyStandForWithOneWorkerAndTwo) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<Key> keys;
  std::vector<float> gradients;
  for (Key key = 0; key < 300; ++key) {
    keys.push_back(key * 7919);
    for (int d = 0; d < 4; ++d) gradients.push_back(normal(random));
  }
  for (const uint32_t workers : {1u, 2u}) {
    for (const RowType type : kTypes) {
      std::vector<std::vector<float>> results;
      for (const bool as_floats : {true, false}) {
        TestJob job;
        job.id = absl::StrCat("job", workers, ".", static_cast<int>(type), ".", as_floats);
        job.workers = workers;
        Open(job);
        for (uint32_t worker = 0; worker < workers; ++worker) {
          v1::PushRequest push;
          if (as_floats) {
            push = job.Push(0, {{0, keys, Decoded(type, Encoded(type, gradients, 4), 4)}}, worker);
          } else {
            push = job.Push(0, {{0, keys, gradients}}, worker);
            SetType(&push, type, 4);
          }
          const absl::Status pushed = Push(push);
          ASSERT_TRUE(pushed.ok()) << pushed;
        }
        const auto rows = Pull(job.Pull(1, {{0, keys}}));
        ASSERT_TRUE(rows.ok()) << rows.status();
        results.push_back(RowsOf(*rows));
      }
      EXPECT_EQ(results[0], results[1]) << workers << " workers, type " << static_cast<int>(type);
    }
  }
}

TEST_F(WireTypes, GradientsOfTheWrongSizeForTheirTypeAreRefusedWithBothSizes) {
  const TestJob job;
  Open(job);
  for (const RowType type : kTypes) {
    v1::PushRequest push = job.Push(0, {{0, {5}, {1, 1, 1, 1}}});
    SetType(&push, type, 4);
    push.mutable_tables(0)->mutable_gradients()->push_back('x');
    const absl::Status status = Push(push);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat(RowWireBytes(type, 4) + 1, " bytes of gradients")),
                      HasSubstr(absl::StrCat("expected ", RowWireBytes(type, 4), " bytes"))));
  }
}

// https://github.com/stanfordnlp/GloVe/pull/16, https://github.com/tensorflow/recommenders-addons/issues/429: one row
// that is not finite among 4,095 that are.
TEST_F(WireTypes, OneBadRowOfAnyTypeRefusesThePushNamesWorkerTableAndIdIsCountedAndChangesNothing) {
  TestJob job;
  job.workers = 3;
  job.tables = {SgdTable("user", 4)};
  Open(job);
  std::vector<Key> keys;
  for (Key key = 0; key < 4096; ++key) keys.push_back(key);
  const auto before = Pull(job.Pull(0, {{0, keys}}));
  ASSERT_TRUE(before.ok()) << before.status();
  const Counter refused = ServerMetrics(&server_.metrics).refused_invalid_argument;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  double expected = refused.Value();
  for (const RowType type : kTypes) {
    for (const float bad : {std::nanf(""), kInfinity, -kInfinity, 1e38f}) {
      // In float16 that is its largest, which trains; the worker counts it.
      if (bad == 1e38f && type == RowType::kFloat16) continue;
      std::vector<float> gradients(keys.size() * 4, 0.5f);
      gradients[1234 * 4 + 2] = bad;
      v1::PushRequest push = job.Push(0, {{0, keys, gradients}}, /*worker=*/2);
      SetType(&push, type, 4);
      const absl::Status status = Push(push);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("worker 2, step 0"), HasSubstr("\"user\""), HasSubstr("key 1234")));
      EXPECT_EQ(refused.Value(), ++expected);
    }
  }
  const auto after = Pull(job.Pull(0, {{0, keys}}));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(RowsOf(*after), RowsOf(*before));
}

}  // namespace
}  // namespace sparrow
