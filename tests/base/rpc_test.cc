#include "base/rpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "absl/time/clock.h"
#include "sparrow/v1/coordinator.grpc.pb.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

TEST(Rpc, EveryCodeGoesOverAndComesBackWithItsMessage) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status over = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(over.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(over), status);
    EXPECT_EQ(IsRetryable(status), status.code() == absl::StatusCode::kUnavailable);
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

// gRPC starts no server without a service; this one refuses every call.
using AnyService = v1::Coordinator::CallbackService;

TEST(Rpc, PortZeroPicksOneAndTwoServersCannotShareIt) {
  AnyService service;
  AnyService other;
  const auto first = StartGrpcServer("127.0.0.1:0", {&service});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->address, testing::StartsWith("127.0.0.1:"));
  EXPECT_NE(first->address, "127.0.0.1:0");
  const absl::Status second = StartGrpcServer(first->address, {&other}).status();
  EXPECT_TRUE(absl::IsUnavailable(second));
  EXPECT_THAT(std::string(second.message()), HasSubstr(first->address));
  const auto channel = MakeChannel(first->address);
  EXPECT_TRUE(WaitForChannel(channel.get(), "test", first->address, absl::Seconds(20)).ok());
}

TEST(Rpc, UnixSocketsAndNoSocketWork) {
  TemporaryDirectory directory;
  const std::string address = "unix:" + directory.File("socket");
  AnyService service;
  AnyService other;
  const auto server = StartGrpcServer(address, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->address, address);
  const auto channel = MakeChannel(address);
  EXPECT_TRUE(WaitForChannel(channel.get(), "test", address, absl::Seconds(20)).ok());
  const auto none = StartGrpcServer("", {&other});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->address, "");
}

TEST(Rpc, AUnixSocketIsNotTakenFromWhoServesItAndOneThatIsLeftIsReplaced) {
  TemporaryDirectory directory;
  const std::string path = directory.File("socket");
  AnyService service;
  AnyService other;
  {
    const auto server = StartGrpcServer("unix:" + path, {&service});
    ASSERT_TRUE(server.ok()) << server.status();
    const auto second = StartGrpcServer("unix:" + path, {&other});
    ASSERT_TRUE(absl::IsUnavailable(second.status())) << second.status();
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(path + ": another program listens there"));
    const auto channel = MakeChannel("unix:" + path);
    EXPECT_TRUE(WaitForChannel(channel.get(), "test", path, absl::Seconds(20)).ok());
  }
  sockaddr_un left{};
  left.sun_family = AF_UNIX;
  std::strncpy(left.sun_path, path.c_str(), sizeof(left.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&left), sizeof(left)), 0);
  close(fd);  // The file stays.
  AnyService third;
  const auto again = StartGrpcServer("unix:" + path, {&third});
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST(Rpc, AUnixPathThatCannotBeASocketIsRefusedByName) {
  TemporaryDirectory directory;
  AnyService service;
  const auto error = [&](const std::string& path) {
    return std::string(StartGrpcServer("unix:" + path, {&service}).status().message());
  };
  EXPECT_THAT(error(directory.path()), HasSubstr("something else than a socket is there"));
  EXPECT_THAT(error(directory.File("no/socket")), HasSubstr(directory.File("no") + " is not a directory"));
  EXPECT_THAT(error(directory.File(std::string(120, 'x'))), HasSubstr("a socket's has at most 107"));
}

TEST(Rpc, NobodyThereIsUnavailableAfterTheTimeoutAndNamed) {
  const auto channel = MakeChannel("127.0.0.1:1");
  const absl::Time start = absl::Now();
  const absl::Status status = WaitForChannel(channel.get(), "server 2", "127.0.0.1:1", absl::Milliseconds(100));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("server 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace sparrow
