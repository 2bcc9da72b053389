// Rows that several workers hold together: lent to each, changed equally by all, returned by one.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "embedding/apply.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/call_memory.h"
#include "server/metrics.h"
#include "server/shard.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

class SharedLoansTest : public ::testing::TestWithParam<bool> {
 protected:
  SharedLoansTest() {
    job_.workers = 3;
    job_.prefetch = GetParam();
    spec_ = *ParseTableConfig(job_.tables[0], job_.seed);
    EXPECT_TRUE(server_.Open(job_).ok());
  }

  // The records that a worker borrows, beside the rows that it pulls for the step.
  absl::StatusOr<std::string> Borrow(uint64_t step, const std::vector<Key>& keys, uint32_t worker) {
    v1::PullRequest request = job_.Pull(step, {{0, keys}}, worker);
    request.set_records(true);
    request.set_parts(0);
    absl::StatusOr<v1::PullResponse> answer = server_.Pull(request);
    if (!answer.ok()) return answer.status();
    return answer->tables(0).rows();
  }
  void PullAll(uint64_t step, const std::vector<Key>& keys) {
    for (uint32_t worker = 0; worker < job_.workers; ++worker) {
      const auto rows = server_.Pull(job_.Pull(step, {{0, keys}}, worker));
      ASSERT_TRUE(rows.ok()) << rows.status();
    }
  }
  v1::PushRequest Return(uint64_t step, const std::vector<Key>& keys, const std::string& records,
                         uint32_t worker) const {
    v1::PushRequest request = job_.Push(step, {}, worker);
    v1::TableRecords* table = request.add_records();
    table->set_keys(std::string(AsBytes(std::span<const Key>(keys))));
    table->set_records(records);
    return request;
  }
  // Of all workers but those named, without rows.
  void PushOthers(uint64_t step, const std::vector<uint32_t>& but) {
    for (uint32_t worker = 0; worker < job_.workers; ++worker) {
      if (std::find(but.begin(), but.end(), worker) != but.end()) continue;
      const absl::Status pushed = server_.Push(job_.Push(step, {}, worker));
      ASSERT_TRUE(pushed.ok()) << pushed;
    }
  }
  // Every row's gradient is 1, of one sample.
  std::string Updated(std::string records, uint64_t step) const {
    const RowUpdate update(spec_, {.step = step});
    const std::vector<float> ones(spec_.dim, 1.0f);
    for (size_t at = 0; at < records.size(); at += spec_.Layout().record_bytes()) {
      update(0, ones.data(), records.data() + at);
    }
    return records;
  }
  absl::StatusOr<v1::PullResponse> Look(uint64_t step, const std::vector<Key>& keys, uint32_t worker) {
    return server_.Pull(job_.Pull(step, {{0, keys}}, worker, /*create=*/false));
  }
  void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  uint64_t Lent() {
    return static_cast<uint64_t>(ServerMetrics(&server_.metrics).lent_rows.Value());  // Goes by name.
  }

  TestJob job_;
  TableSpec spec_;
  TestShard server_;
};

TEST_P(SharedLoansTest, ARowIsLentToAllReturnedByOneAndReadByEveryoneAfterwards) {
  PullAll(0, {7});
  const auto first = Borrow(0, {1, 2}, 0);
  ASSERT_TRUE(first.ok()) << first.status();
  for (uint32_t worker = 1; worker < 3; ++worker) EXPECT_EQ(*Borrow(0, {1, 2}, worker), *first);
  EXPECT_EQ(Lent(), 2u) << "once";
  PushOthers(0, {});
  PullAll(1, {7});
  ExpectRefused(Look(1, {1}, 2).status(), absl::StatusCode::kFailedPrecondition, "id 1 is lent to the workers");
  ExpectRefused(Borrow(1, {1}, 1).status(), absl::StatusCode::kFailedPrecondition, "id 1 is lent to the workers");

  const std::string updated = Updated(Updated(*first, 0), 1);
  const v1::PushRequest back = Return(1, {1, 2}, updated, 1);
  v1::PushResponse response;
  ASSERT_TRUE(server_.shard->Push(back, &response).ok());
  EXPECT_FALSE(response.duplicate());
  EXPECT_EQ(Lent(), 2u) << "the step is not applied yet";
  EXPECT_GT(server_.shard->call_memory()->waiting_bytes(), updated.size()) << "the copy waits, and counts";
  ASSERT_TRUE(server_.shard->Push(back, &response).ok());
  EXPECT_TRUE(response.duplicate());
  PullInFlight later(server_.shard.get(), job_.Pull(2, {{0, {2}}}, 2));
  EXPECT_FALSE(later.done());
  PushOthers(1, {1});
  ASSERT_TRUE(later.Wait().ok()) << later.Wait();
  EXPECT_EQ(Lent(), 0u);
  EXPECT_EQ(*Borrow(2, {1, 2}, 0), updated);
  EXPECT_EQ(later.response().tables(0).rows(),
            updated.substr(spec_.Layout().record_bytes(), spec_.dim * sizeof(float)));
  ASSERT_TRUE(server_.shard->Push(back, &response).ok());
  EXPECT_TRUE(response.duplicate()) << "again, when the row is lent anew";
}

TEST_P(SharedLoansTest, TwoWorkersCannotReturnARowInOneStep) {
  PullAll(0, {});
  const std::string record = *Borrow(0, {1}, 0);
  ASSERT_TRUE(server_.Push(Return(0, {1}, Updated(record, 0), 0)).ok());
  ExpectRefused(server_.Push(Return(0, {1}, record, 1)), absl::StatusCode::kInvalidArgument,
                "push of worker 1, step 0, part 0: table \"user\": id 1 is returned, but has come back in this step");
  PushOthers(0, {0});
  EXPECT_EQ(*Borrow(1, {1}, 2), Updated(record, 0));
}

TEST_P(SharedLoansTest, AGradientOfALentRowIsRefused) {
  PullAll(0, {1, 3});
  ASSERT_TRUE(Borrow(0, {1}, 0).ok());
  ExpectRefused(server_.Push(job_.Push(0, {{0, {1}, {1, 1, 1, 1}}}, 2)), absl::StatusCode::kInvalidArgument,
                "push of worker 2 for step 0: table \"user\": id 1 is lent to the workers");
  // One that came before the row was lent ends the job, since it can be neither applied nor left out.
  ASSERT_TRUE(server_.Push(job_.Push(0, {{0, {3}, {1, 1, 1, 1}}}, 2)).ok());
  ASSERT_TRUE(Borrow(0, {3}, 1).ok());
  ASSERT_TRUE(server_.Push(job_.Push(0, {}, 0)).ok());
  ExpectRefused(server_.Push(job_.Push(0, {}, 1)), absl::StatusCode::kFailedPrecondition,
                "job job-1, step 0: table \"user\": id 3 has a gradient in step 0 from one worker, and is lent");
}

TEST_P(SharedLoansTest, GradientsAndReturnsOfOneStepMeet) {
  PullAll(0, {5, 6});
  const std::string record = *Borrow(0, {1}, 0);
  TestShard other;
  ASSERT_TRUE(other.Open(job_).ok());
  for (uint32_t worker = 0; worker < 3; ++worker) ASSERT_TRUE(other.Pull(job_.Pull(0, {{0, {5, 6}}}, worker)).ok());
  for (uint32_t worker = 0; worker < 3; ++worker) {
    v1::PushRequest push = job_.Push(0, {{0, {5, 6}, std::vector<float>(8, static_cast<float>(worker + 1))}}, worker);
    ASSERT_TRUE(other.Push(push).ok());
    if (worker == 0) *push.add_records() = Return(0, {1}, Updated(record, 0), 0).records(0);
    ASSERT_TRUE(server_.Push(push).ok());
  }
  EXPECT_EQ(Look(1, {5, 6}, 0)->tables(0).rows(), other.Pull(job_.Pull(1, {{0, {5, 6}}}, 0, false))->tables(0).rows());
  EXPECT_EQ(*Borrow(1, {1}, 1), Updated(record, 0));
}

TEST_P(SharedLoansTest, OneWorkerWritesBackForAll) {
  PullAll(0, {});
  const std::string records = *Borrow(0, {1, 2}, 0);
  ASSERT_TRUE(Borrow(0, {1, 2}, 1).ok());
  PushOthers(0, {});
  const std::string updated = Updated(records, 0);
  v1::PushRequest back = Return(1, {1}, updated.substr(0, spec_.Layout().record_bytes()), 2);
  back.set_parts(0);
  back.mutable_records(0)->set_keep(true);
  ASSERT_TRUE(server_.Push(back).ok());
  EXPECT_TRUE(Look(1, {1}, 0).ok());
  ExpectRefused(Look(1, {2}, 0).status(), absl::StatusCode::kFailedPrecondition, "id 2 is lent");
  back.clear_records();
  back.set_complete(true);
  ASSERT_TRUE(server_.Push(back).ok());
  for (uint32_t worker = 0; worker < 3; ++worker) EXPECT_TRUE(Look(1, {1, 2}, worker).ok());
  EXPECT_EQ(Lent(), 2u) << "they stay lent";
}

INSTANTIATE_TEST_SUITE_P(Prefetch, SharedLoansTest, ::testing::Bool(),
                         [](const auto& suite) { return suite.param ? "With" : "Without"; });

}  // namespace
}  // namespace sparrow
