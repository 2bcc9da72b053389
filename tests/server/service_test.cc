// The shard over a real loopback connection.

#include "server/service.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/service_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

using Service = ServiceFixture;

TEST_F(Service, AnswersOverTheWireAreTheShards) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  std::vector<Key> keys(5000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::vector<float> gradients(keys.size() * 4, 0.5f);
  for (uint64_t step = 0; step < 3; ++step) {
    const v1::PullRequest pull = job.Pull(step, {{0, keys}, {1, {1, 2}}});
    const auto wire = Pull(pull);
    ASSERT_TRUE(wire.ok()) << wire.status();
    const auto direct = server_.Pull(pull);
    ASSERT_TRUE(direct.ok());
    ASSERT_TRUE(wire->SerializeAsString() == direct->SerializeAsString());
    v1::PushResponse response;
    ASSERT_TRUE(Push(job.Push(step, {{0, keys, gradients}}), &response).ok());
    EXPECT_FALSE(response.duplicate());
    ASSERT_TRUE(Push(job.Push(step, {{0, keys, gradients}}), &response).ok());
    EXPECT_TRUE(response.duplicate());
  }
  grpc::ClientContext context;
  v1::CloseJobRequest close;
  *close.mutable_context() = job.Context();
  v1::CloseJobResponse closed;
  EXPECT_TRUE(stub_->CloseJob(&context, close, &closed).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Pull(job.Pull(3, {})).status()));
}

TEST_F(Service, SavesTables) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  ASSERT_TRUE(Pull(job.Pull(0, {{0, {1, 2}}})).ok());
  v1::SaveTablesRequest request;
  *request.mutable_context() = job.Context();
  request.set_directory("data");
  grpc::ClientContext context;
  v1::SaveTablesResponse response;
  ASSERT_TRUE(stub_->SaveTables(&context, request, &response).ok());
  ASSERT_EQ(response.files_size(), 2);
  EXPECT_EQ(response.files(0).rows(), 2u);
}

TEST_F(Service, ManyWaitingPullsHoldNoThreadAndAreAllAnswered) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  std::vector<std::unique_ptr<WirePull>> pulls;
  for (Key key = 0; key < 100; ++key) {
    pulls.push_back(std::make_unique<WirePull>(stub_.get(), job.Pull(1, {{0, {key}}})));
  }
  ASSERT_TRUE(WaitForWaitingPulls(100));
  ASSERT_TRUE(Pull(job.Pull(0, {{0, {5}}})).ok());
  ASSERT_TRUE(Push(job.Push(0, {{0, {5}, {1, 1, 1, 1}}})).ok());
  for (Key key = 0; key < 100; ++key) {
    ASSERT_TRUE(pulls[key]->Wait().ok()) << pulls[key]->Wait();
    EXPECT_EQ(pulls[key]->response.version(), 1u);
    // Case 44: each its own answer.
    const auto again = server_.Pull(job.Pull(1, {{0, {key}}}));
    EXPECT_EQ(RowsOf(pulls[key]->response), RowsOf(*again));
  }
  EXPECT_EQ(WaitingPulls(), 0);
}

TEST_F(Service, CancelledPullStopsWaiting) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  WirePull pull(stub_.get(), job.Pull(1, {}));
  ASSERT_TRUE(WaitForWaitingPulls(1));
  pull.context.TryCancel();
  EXPECT_TRUE(absl::IsCancelled(pull.Wait()));
  EXPECT_TRUE(WaitForWaitingPulls(0));
  EXPECT_TRUE(Pull(job.Pull(0, {})).ok());
}

TEST_F(Service, PullPastItsDeadlineStopsWaiting) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  WirePull pull(stub_.get(), job.Pull(1, {}), absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(pull.Wait()));
  EXPECT_TRUE(WaitForWaitingPulls(0));
}

TEST_F(Service, CancellationsAtAnyMomentLeaveNothingBehind) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  for (uint64_t step = 0; step < 100; ++step) {
    WirePull ready(stub_.get(), job.Pull(step, {{0, {step}}}));
    WirePull ahead(stub_.get(), job.Pull(step + 1, {{0, {step}}}));
    std::thread canceller([&] {
      ready.context.TryCancel();
      ahead.context.TryCancel();
    });
    const absl::Status pushed = Push(job.Push(step, {}));
    EXPECT_TRUE(pushed.ok()) << pushed;
    canceller.join();
    for (const absl::Status& status : {ready.Wait(), ahead.Wait()}) {
      // A pull that comes after the push is of a step that is over.
      EXPECT_TRUE(status.ok() || absl::IsCancelled(status) || absl::IsFailedPrecondition(status)) << status;
    }
  }
  EXPECT_TRUE(WaitForWaitingPulls(0));
}

TEST_F(Service, ShutdownEndsWaitingPulls) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  WirePull pull(stub_.get(), job.Pull(1, {}));
  ASSERT_TRUE(WaitForWaitingPulls(1));
  server_.shard->Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(pull.Wait())) << pull.Wait();
}

// Case 4's wire form, and case 50: lengths that lie.
TEST_F(Service, BytesThatAreNoRequestAreRefusedAndTheConnectionStaysUsable) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  const std::string lies[] = {
      "garbage that is not protobuf",
      std::string("\x22\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10),      // Field 4 of 2^63 - 1 bytes.
      std::string("\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11),  // Of -1 bytes.
      std::string("\x22\xff\xff\xff\x1f"
                  "abc",
                  8),  // Of 64 MiB - 1, three follow.
      std::string("\x22\x05\x12\x7f"
                  "ab",
                  6),  // Inside a table: 127 bytes in 5.
      std::string("\x22", 1),
  };
  for (const std::string& lie : lies) {
    for (const char* method : {"Pull", "Push"}) {
      const absl::Status status = Raw(method, lie);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << method << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(lie.size(), " bytes is not a ", method)));
    }
  }
  EXPECT_TRUE(Raw("Pull", job.Pull(0, {{0, {1}}}).SerializeAsString()).ok());
  EXPECT_TRUE(Pull(job.Pull(0, {{0, {1}}})).ok());
}

// Case 50 at the real limit: 64 MiB.
TEST_F(Service, MessagesUpToTheLimitArriveAndLargerOnesAreRefusedWithBothNumbers) {
  const TestJob job;
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  const size_t head = job.Push(0, {}).SerializeAsString().size();
  for (const int over : {-1, 0, 1}) {
    const size_t bytes = static_cast<size_t>(kMessageBytesMax + over);
    std::string message;
    {
      // A table with gradients but no keys: it arrives, and is refused for that.
      v1::PushRequest push = job.Push(0, {});
      push.add_tables()->set_gradients(std::string(bytes - head - 10, '\0'));
      message = push.SerializeAsString();
    }
    ASSERT_EQ(message.size(), bytes);
    const absl::Status status = Raw("Push", message);
    if (over <= 0) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("for 0 keys"));
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(bytes)));
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(kMessageBytesMax)));
    }
    EXPECT_TRUE(Raw("Pull", job.Pull(0, {{0, {1}}}).SerializeAsString()).ok());
  }
}

TEST_F(Service, AnswersUpToTheLimitArriveAndLargerOnesAreRefused) {
  TestJob job;
  job.tables = {SgdTable("wide", 4096)};
  const absl::Status opened = Open(job);
  ASSERT_TRUE(opened.ok()) << opened;
  std::vector<Key> keys(4095);  // 16 KiB each: with the message's own bytes, 4,096 are too many.
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const auto fits = Pull(job.Pull(0, {{0, keys}}, 0, /*create=*/false));
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(fits->tables(0).rows().size(), keys.size() * 16384);
  keys.push_back(keys.size());
  const auto too_large = Pull(job.Pull(0, {{0, keys}}, 0, /*create=*/false));
  EXPECT_TRUE(absl::IsInvalidArgument(too_large.status())) << too_large.status();
  EXPECT_THAT(std::string(too_large.status().message()), HasSubstr("67108864"));
  EXPECT_TRUE(Pull(job.Pull(0, {{0, {1}}})).ok());
}

}  // namespace
}  // namespace sparrow
