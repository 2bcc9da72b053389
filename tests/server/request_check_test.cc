// Every malformed request is refused whole, with a message that names what is wrong, and the next good one works.

#include "server/request_check.h"

#include <cmath>
#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/job_spec.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

struct BadPull {
  std::string name;
  std::function<void(v1::PullRequest*)> spoil;
  absl::StatusCode code;
  std::string says;
};

struct BadPush {
  std::string name;
  std::function<void(v1::PushRequest*)> spoil;
  absl::StatusCode code;
  std::string says;
};

void SetContextEpoch(v1::CallContext* context, uint64_t epoch) { context->set_epoch(epoch); }

std::string KeyBytes(const std::vector<Key>& keys) { return std::string(AsBytes(std::span<const Key>(keys))); }
std::string FloatBytes(const std::vector<float>& values) {
  return std::string(AsBytes(std::span<const float>(values)));
}

std::vector<BadPull> BadPulls() {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  return {
      {"another job", [](auto* r) { r->mutable_context()->set_job_id("job-7"); }, kPrecondition, "job-7"},
      {"older epoch", [](auto* r) { SetContextEpoch(r->mutable_context(), 0); }, kPrecondition, "epoch 0"},
      {"newer epoch", [](auto* r) { SetContextEpoch(r->mutable_context(), 2); }, kPrecondition, "epoch 2"},
      {"fingerprint", [](auto* r) { r->mutable_context()->set_fingerprint(5); }, kPrecondition, "fingerprint 5"},
      {"rank", [](auto* r) { r->mutable_context()->set_worker(2); }, kInvalid, "worker 2 is not one of 2"},
      {"table index", [](auto* r) { r->mutable_tables(0)->set_table(2); }, kInvalid, "table 2 is not one of"},
      {"table index -1", [](auto* r) { r->mutable_tables(0)->set_table(~0u); }, kInvalid, "table 4294967295"},
      {"table twice", [](auto* r) { r->mutable_tables(0)->set_table(1); }, kInvalid, "given twice"},
      {"too many tables", [](auto* r) { *r->add_tables() = r->tables(0); }, kInvalid, "3 tables"},
      {"7 bytes of key", [](auto* r) { r->mutable_tables(0)->set_keys("1234567"); }, kInvalid, "7 bytes"},
      {"9 bytes of key", [](auto* r) { r->mutable_tables(0)->set_keys("123456789"); }, kInvalid, "9 bytes"},
      {"key twice",
       [](auto* r) {
         r->mutable_tables(0)->set_keys(KeyBytes({1, 2, 1}));
       },
       kInvalid, "id 1 is given twice"},
      {"id == rows",
       [](auto* r) {
         r->mutable_tables(1)->set_keys(KeyBytes({1, 1000}));
       },
       absl::StatusCode::kOutOfRange, "1000"},
      {"id 2^32+5", [](auto* r) { r->mutable_tables(1)->set_keys(KeyBytes({(Key{1} << 32) + 5})); },
       absl::StatusCode::kOutOfRange, "4294967301"},
      {"id -1", [](auto* r) { r->mutable_tables(1)->set_keys(KeyBytes({~Key{0}})); }, absl::StatusCode::kOutOfRange,
       "18446744073709551615"},
  };
}

std::vector<BadPush> BadPushes() {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  const auto poison = [](float value) {
    return [value](v1::PushRequest* r) {
      r->mutable_tables(0)->set_gradients(FloatBytes({1, 2, 3, 4, 5, value, 7, 8}));
    };
  };
  return {
      {"another job", [](auto* r) { r->mutable_context()->set_job_id(""); }, kPrecondition, "not open"},
      {"epoch", [](auto* r) { SetContextEpoch(r->mutable_context(), 9); }, kPrecondition, "epoch 9"},
      {"fingerprint", [](auto* r) { r->mutable_context()->set_fingerprint(0); }, kPrecondition, "fingerprint 0"},
      {"rank", [](auto* r) { r->mutable_context()->set_worker(77); }, kInvalid, "worker 77"},
      {"step ahead", [](auto* r) { r->set_step(1); }, kPrecondition, "for step 1"},
      {"step far ahead", [](auto* r) { r->set_step(~uint64_t{0}); }, kPrecondition, "18446744073709551615"},
      {"no parts", [](auto* r) { r->set_parts(0); }, kInvalid, "part 0 of 0"},
      {"part == parts", [](auto* r) { r->set_part(1); }, kInvalid, "part 1 of 1"},
      {"parts beyond all", [](auto* r) { r->set_parts(~0u); }, kInvalid, "4294967295"},
      {"samples beyond all", [](auto* r) { r->set_samples(uint64_t{1} << 63); }, kInvalid, "9223372036854775808"},
      {"rows of no sample", [](auto* r) { r->set_samples(0); }, kInvalid, "from 0 samples"},
      {"factor NaN", [](auto* r) { r->set_learning_rate_factor(std::nan("")); }, kInvalid, "nan"},
      {"factor negative", [](auto* r) { r->set_learning_rate_factor(-1); }, kInvalid, "-1"},
      {"factor infinite", [](auto* r) { r->set_learning_rate_factor(HUGE_VAL); }, kInvalid, "inf"},
      {"table index", [](auto* r) { r->mutable_tables(0)->set_table(9); }, kInvalid, "table 9"},
      {"table twice", [](auto* r) { r->mutable_tables(0)->set_table(1); }, kInvalid, "given twice"},
      {"odd keys", [](auto* r) { r->mutable_tables(0)->set_keys("123"); }, kInvalid, "3 bytes"},
      {"gradients short", [](auto* r) { r->mutable_tables(0)->mutable_gradients()->resize(28); }, kInvalid, "28 bytes"},
      {"gradients long", [](auto* r) { r->mutable_tables(0)->mutable_gradients()->resize(33); }, kInvalid, "33 bytes"},
      {"gradients absent", [](auto* r) { r->mutable_tables(0)->clear_gradients(); }, kInvalid, "0 bytes of gradients"},
      {"keys absent", [](auto* r) { r->mutable_tables(0)->clear_keys(); }, kInvalid, "for 0 keys"},
      {"key twice",
       [](auto* r) {
         r->mutable_tables(0)->set_keys(KeyBytes({7, 7}));
       },
       kInvalid, "id 7 is given twice"},
      {"id == rows", [](auto* r) { r->mutable_tables(1)->set_keys(KeyBytes({1000})); }, absl::StatusCode::kOutOfRange,
       "1000"},
      {"id 2^31", [](auto* r) { r->mutable_tables(1)->set_keys(KeyBytes({Key{1} << 31})); },
       absl::StatusCode::kOutOfRange, "2147483648"},
      {"NaN", poison(std::nanf("")), kInvalid, "key 12"},
      {"Inf", poison(HUGE_VALF), kInvalid, "key 12"},
      {"-Inf", poison(-HUGE_VALF), kInvalid, "key 12"},
      {"1e38", poison(1e38f), kInvalid, "key 12"},
  };
}

class RequestCheck : public ::testing::Test {
 protected:
  RequestCheck() {
    job_.workers = 2;
    EXPECT_TRUE(server_.Open(job_).ok());
  }
  v1::PullRequest GoodPull() const { return job_.Pull(0, {{0, {11, 12}}, {1, {5}}}); }
  v1::PushRequest GoodPush() const {
    return job_.Push(0, {{0, {11, 12}, {1, 2, 3, 4, 5, 6, 7, 8}}, {1, {5}, {1, 2, 3}}}, 1, 2);
  }

  TestJob job_;
  TestShard server_;
};

TEST_F(RequestCheck, BadPullsAreRefusedByName) {
  for (const BadPull& bad : BadPulls()) {
    v1::PullRequest request = GoodPull();
    bad.spoil(&request);
    const absl::Status status = server_.Pull(request).status();
    EXPECT_EQ(status.code(), bad.code) << bad.name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.says)) << bad.name;
    EXPECT_EQ(server_.shard->GetUsage().rows, 0u) << bad.name;
  }
  EXPECT_TRUE(server_.Pull(GoodPull()).ok());
}

// Case 28 among them: one bad value, and no row of the push changes.
TEST_F(RequestCheck, BadPushesAreRefusedByNameAndChangeNothing) {
  const auto before = server_.Pull(job_.Pull(0, {{0, {11, 12}}, {1, {0, 5}}}));
  ASSERT_TRUE(before.ok());
  for (const BadPush& bad : BadPushes()) {
    v1::PushRequest request = GoodPush();
    bad.spoil(&request);
    const absl::Status status = server_.Push(request);
    EXPECT_EQ(status.code(), bad.code) << bad.name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.says)) << bad.name;
  }
  const auto after = server_.Pull(job_.Pull(0, {{0, {11, 12}}, {1, {0, 5}}}));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->SerializeAsString(), before->SerializeAsString());
  EXPECT_EQ(server_.shard->GetUsage().rows, 4u);
  ASSERT_TRUE(server_.Push(GoodPush()).ok());
  ASSERT_TRUE(server_.Push(job_.Push(0, {}, 0, 0)).ok());
  const auto trained = server_.Pull(job_.Pull(1, {{0, {11}}, {1, {0}}}));
  ASSERT_TRUE(trained.ok());
  EXPECT_FLOAT_EQ(RowsOf(*trained)[0], RowsOf(*before)[0] - 0.5f * 1 / 2);
  // Case 1: the row that a wrapped or clamped id would hit.
  EXPECT_EQ(RowsOf(*trained, 1)[0], RowsOf(*before, 1)[0]);
}

TEST_F(RequestCheck, RefusedGradientNamesWorkerTableAndId) {
  v1::PushRequest request = GoodPush();
  request.mutable_tables(1)->set_gradients(FloatBytes({0, std::nanf(""), 0}));
  const std::string message(server_.Push(request).message());
  EXPECT_THAT(message, HasSubstr("worker 1"));
  EXPECT_THAT(message, HasSubstr("step 0"));
  EXPECT_THAT(message, HasSubstr("\"item\""));
  EXPECT_THAT(message, HasSubstr("5"));
}

TEST_F(RequestCheck, PartsThatContradictEachOtherAreRefused) {
  v1::PushRequest first = GoodPush();
  first.set_parts(3);
  ASSERT_TRUE(server_.Push(first).ok());
  const auto refuse = [&](auto spoil, const std::string& says) {
    v1::PushRequest second = job_.Push(0, {{0, {13}, {1, 2, 3, 4}}}, 1, 2);
    second.set_part(1);
    second.set_parts(3);
    spoil(&second);
    const absl::Status status = server_.Push(second);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  };
  refuse([](v1::PushRequest* r) { r->set_parts(2); }, "parts is 2");
  refuse([](v1::PushRequest* r) { r->set_samples(3); }, "samples is 3");
  refuse([](v1::PushRequest* r) { r->set_learning_rate_factor(0.5); }, "learning_rate_factor is 0.5");
  refuse([](v1::PushRequest* r) { r->mutable_tables(0)->set_keys(KeyBytes({12})); }, "id 12 is in an earlier part");
  // Another worker: its own samples and parts, the same factor.
  v1::PushRequest other = job_.Push(0, {}, 0, 9);
  other.set_learning_rate_factor(0.25);
  EXPECT_TRUE(absl::IsInvalidArgument(server_.Push(other)));
  EXPECT_TRUE(server_.Push(job_.Push(0, {}, 0, 9)).ok());
}

TEST(RequestCheckOfOpenJob, BadDescriptionsAreRefusedByName) {
  TestShard server;
  const TestJob job;
  const std::vector<std::pair<std::string, std::function<void(v1::OpenJobRequest*)>>> bad = {
      {"job id", [](auto* r) { r->mutable_context()->set_job_id("../../etc"); }},
      {"job id", [](auto* r) { r->mutable_context()->set_job_id(""); }},
      {"workers is 0", [](auto* r) { r->set_workers(0); }},
      {"workers is 4294967295", [](auto* r) { r->set_workers(~0u); }},
      {"worker 1", [](auto* r) { r->mutable_context()->set_worker(1); }},
      {"named \"user\"", [](auto* r) { r->mutable_tables(1)->set_name("user"); }},
      {"dim", [](auto* r) { r->mutable_tables(0)->set_dim(0); }},
      {"dim", [](auto* r) { r->mutable_tables(0)->set_dim(1 << 30); }},
      {"server 4294967295", [](auto* r) { r->mutable_shard_map()->set_owner(17, ~0u); }},
      {"409", [](auto* r) { r->mutable_shard_map()->mutable_owner()->Truncate(4095); }},
      {"409", [](auto* r) { r->mutable_shard_map()->add_owner(0); }},
      {"server 5000", [](auto* r) { r->set_server(5000); }},
  };
  for (const auto& [says, spoil] : bad) {
    v1::OpenJobRequest request = job.Open();
    spoil(&request);
    v1::OpenJobResponse response;
    const absl::Status status = server.shard->OpenJob(request, &response);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << says << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  }
  EXPECT_TRUE(server.Open(job).ok());
}

// Case 50: the largest answer that fits passes, one byte less room refuses it, with both numbers.
TEST(RequestCheckOfSizes, AnswerAtTheLimitPassesAndAboveItIsRefused) {
  const TestJob job;
  const v1::PullRequest request = job.Pull(0, {{0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}, {1, {}}});
  uint64_t bytes = 0;
  {
    TestShard server;
    ASSERT_TRUE(server.Open(job).ok());
    const auto response = server.Pull(request);
    ASSERT_TRUE(response.ok());
    bytes = response->ByteSizeLong();
  }
  for (const int over : {-1, 0, 1}) {
    TestShard server(bytes - over);
    ASSERT_TRUE(server.Open(job).ok());
    const auto response = server.Pull(request);
    EXPECT_EQ(response.ok(), over <= 0) << response.status();
    if (over <= 0) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(response.status()));
    EXPECT_THAT(std::string(response.status().message()), HasSubstr(absl::StrCat(bytes)));
    EXPECT_THAT(std::string(response.status().message()), HasSubstr(absl::StrCat(bytes - 1)));
    EXPECT_TRUE(server.Pull(job.Pull(0, {{0, {1}}})).ok());
  }
}

TEST(RequestCheckOfSizes, ComputedAnswerSizeIsTheEncodedSize) {
  TestJob job;
  TestShard server;
  job.first_step = 300;
  ASSERT_TRUE(server.Open(job).ok());
  for (const size_t keys : {0, 1, 7, 8, 9, 100, 1000, 2000}) {
    TestJob::KeysOfTable user = {0, {}}, item = {1, {}};
    for (size_t i = 0; i < keys; ++i) user.keys.push_back(i);
    for (size_t i = 0; i < keys / 3; ++i) item.keys.push_back(i);
    const v1::PullRequest request = job.Pull(300, {item, user});
    const auto response = server.Pull(request);
    ASSERT_TRUE(response.ok()) << response.status();
    const absl::StatusOr<JobSpec> spec = ParseOpenJob(job.Open());
    ASSERT_TRUE(spec.ok());
    EXPECT_EQ(PullResponseBytes(*spec, request), response->ByteSizeLong()) << keys;
  }
}

}  // namespace
}  // namespace sparrow
