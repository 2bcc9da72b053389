// The daemon: in this process, and as the program that users start.

#include "server/server.h"

#include <grpcpp/grpcpp.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparrow/v1/coordinator.grpc.pb.h"
#include "sparrow/v1/parameter_server.grpc.pb.h"
#include "tests/server/call_end.h"
#include "tests/server/shard_fixture.h"
#include "tests/support/child_process.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

// A coordinator that admits everybody and says which jobs live.
class StandInCoordinator final : public v1::Coordinator::Service {
 public:
  StandInCoordinator() {
    auto listening = StartGrpcServer("127.0.0.1:0", {this});
    CHECK(listening.ok()) << listening.status();
    grpc_ = *std::move(listening);
  }
  ~StandInCoordinator() override { grpc_.server->Shutdown(DeadlineAfter(absl::Seconds(1))); }

  const std::string& address() const { return grpc_.address; }
  void SetLiveJobs(std::vector<std::string> jobs) {
    absl::MutexLock lock(&mu_);
    live_jobs_ = std::move(jobs);
  }
  v1::RegisterRequest registration() const {
    absl::MutexLock lock(&mu_);
    return registration_;
  }
  bool left() const {
    absl::MutexLock lock(&mu_);
    return left_;
  }
  // The first heartbeat from now on that says so many rows.
  bool WaitForRows(uint64_t rows) {
    absl::MutexLock lock(&mu_);
    const auto there = [this, rows]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return rows_ == rows; };
    return mu_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20));
  }

 private:
  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override {
    absl::MutexLock lock(&mu_);
    registration_ = *request;
    response->set_member_id("server-1");
    response->set_lease_ms(10'000);
    response->set_heartbeat_ms(20);
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    absl::MutexLock lock(&mu_);
    rows_ = request->rows();
    for (const std::string& job : live_jobs_) response->add_live_job_ids(job);
    return grpc::Status::OK;
  }
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest*, v1::LeaveResponse*) override {
    absl::MutexLock lock(&mu_);
    left_ = true;
    return grpc::Status::OK;
  }

  ListeningServer grpc_;

  mutable absl::Mutex mu_;
  v1::RegisterRequest registration_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> live_jobs_ ABSL_GUARDED_BY(mu_) = {"job-1"};
  uint64_t rows_ ABSL_GUARDED_BY(mu_) = 0;
  bool left_ ABSL_GUARDED_BY(mu_) = false;
};

class ServerTest : public ::testing::Test {
 protected:
  ServerOptions Options() {
    ServerOptions options;
    options.coordinator = coordinator_.address();
    options.listen = "127.0.0.1:0";
    options.data = directory_.File("data");
    options.checkpoint_root = directory_.path();
    options.memory_bytes = 64 << 20;
    return options;
  }
  std::vector<std::string> Command(const std::string& listen = "127.0.0.1:0", const std::string& data = "data") {
    return {ProgramPath("sparrow-server"),
            "--coordinator",
            coordinator_.address(),
            "--listen",
            listen,
            "--data",
            directory_.File(data),
            "--memory",
            "64MiB",
            "--checkpoint-root",
            directory_.path(),
            "--metrics",
            "127.0.0.1:0"};
  }

  StandInCoordinator coordinator_;
  TemporaryDirectory directory_;
  Metrics metrics_;
};

TEST_F(ServerTest, RegistersReportsItsRowsAndDropsDeadJobs) {
  auto server = Server::Start(Options(), &metrics_);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(coordinator_.registration().kind(), v1::SERVER);
  EXPECT_EQ(coordinator_.registration().address(), (*server)->address());
  EXPECT_EQ(coordinator_.registration().memory_bytes(), 64u << 20);
  const auto stub = v1::ParameterServer::NewStub(MakeChannel((*server)->address()));
  const TestJob job;
  {
    grpc::ClientContext context;
    v1::OpenJobResponse response;
    ASSERT_TRUE(stub->OpenJob(&context, job.Open(), &response).ok());
  }
  {
    grpc::ClientContext context;
    v1::PullResponse response;
    ASSERT_TRUE(stub->Pull(&context, job.Pull(0, {{0, {1, 2, 3}}}), &response).ok());
  }
  EXPECT_TRUE(coordinator_.WaitForRows(3));
  coordinator_.SetLiveJobs({"job-2"});
  EXPECT_TRUE(coordinator_.WaitForRows(0));
  (*server)->Stop();
  (*server)->Stop();
  EXPECT_TRUE((*server)->WaitUntilStopped().ok());
  EXPECT_TRUE(coordinator_.left());
}

TEST_F(ServerTest, ServesUnixSocketsAndNoSocketAtAll) {
  ServerOptions options = Options();
  options.listen = "unix:" + directory_.File("socket");
  {
    const auto server = Server::Start(options, &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_EQ((*server)->address(), options.listen);
    const auto stub = v1::ParameterServer::NewStub(MakeChannel(options.listen));
    grpc::ClientContext context;
    v1::OpenJobResponse response;
    EXPECT_TRUE(stub->OpenJob(&context, TestJob().Open(), &response).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(directory_.File("socket")));  // It leaves none behind.
  options.listen = "";
  EXPECT_TRUE(absl::IsInvalidArgument(Server::Start(options, &metrics_).status()));
  options.advertise = "inprocess:0";
  const auto server = Server::Start(options, &metrics_);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(coordinator_.registration().address(), "inprocess:0");
  EXPECT_TRUE((*server)->shard()->Push(TestJob().Push(0, {}), nullptr).code() == absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServerTest, WildcardAddressIsAdvertisedByTheWayToTheCoordinator) {
  ServerOptions options = Options();
  options.listen = "0.0.0.0:0";
  const auto server = Server::Start(options, &metrics_);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT((*server)->address(), ::testing::StartsWith("127.0.0.1:"));
  EXPECT_THAT((*server)->listen_address(), ::testing::StartsWith("0.0.0.0:"));
}

TEST_F(ServerTest, NoCoordinatorIsNamed) {
  ServerOptions options = Options();
  options.coordinator = "127.0.0.1:1";
  options.connect_timeout = absl::Milliseconds(200);
  const auto server = Server::Start(options, &metrics_);
  EXPECT_TRUE(absl::IsUnavailable(server.status()));
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("127.0.0.1:1"));
}

TEST_F(ServerTest, HelpNamesEveryFlagAndBadOnesAreOneLine) {
  const RunResult help = RunProgram({ProgramPath("sparrow-server"), "--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* flag :
       {"--coordinator", "--listen", "--data", "--memory", "--checkpoint-root", "--advertise", "--metrics"}) {
    EXPECT_THAT(help.out, HasSubstr(flag));
  }
  const std::string data_is_a_file = directory_.File("file");
  std::ofstream(data_is_a_file) << "x";
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{}, "coordinator"},
      {{"--coordinator=h:1", "--memroy=1"}, "memory"},
      {{"--coordinator=h:1", "--memory=lots"}, "lots"},
      {{"--coordinator=h:1", "--memory=0"}, "at least 1.0 MiB"},
      {{"--coordinator=h:1", "--memory=64KiB"}, "at least 1.0 MiB"},
      {{"--coordinator=h:1", "positional"}, "positional"},
      {{"--coordinator=h:1", "--data", data_is_a_file}, data_is_a_file},
      {{"--coordinator=h:1", "--data", data_is_a_file + "/x"}, "--data"},
  };
  for (const auto& [flags, says] : bad) {
    std::vector<std::string> command = {ProgramPath("sparrow-server")};
    command.insert(command.end(), flags.begin(), flags.end());
    const RunResult result = RunProgram(command);
    EXPECT_EQ(result.status, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

// Case 52.
TEST_F(ServerTest, RestartsOnItsPortAtOnceAndASecondOneIsRefused) {
  std::string address;
  {
    ChildProcess first(Command());
    const auto printed = first.WaitForOutput("listening on ");
    ASSERT_TRUE(printed.has_value()) << first.Stderr();
    ASSERT_TRUE(first.WaitForOutput("metrics on ").has_value());
    address = *printed;
    // A connection that the server ends leaves its port in TIME_WAIT.
    const auto channel = MakeChannel(address);
    ASSERT_TRUE(WaitForChannel(channel.get(), "server", address, absl::Seconds(20)).ok());

    const RunResult second = RunProgram(Command(address, "data-2"));
    EXPECT_EQ(second.status, 1);
    EXPECT_THAT(second.err, HasSubstr(address));
    EXPECT_EQ(std::count(second.err.begin(), second.err.end(), '\n'), 1) << second.err;
    const RunResult same_data = RunProgram(Command("127.0.0.1:0"));
    EXPECT_EQ(same_data.status, 1);
    EXPECT_THAT(same_data.err, HasSubstr("in use by another server"));

    first.Signal(SIGTERM);
    EXPECT_EQ(first.Wait(absl::Seconds(20)), 0) << first.Stderr();
  }
  ChildProcess again(Command(address));
  EXPECT_EQ(again.WaitForOutput("listening on "), address) << again.Stderr();
}

// Case 53.
TEST_F(ServerTest, SignalsEndItInSecondsWithStatusZeroAlsoWhilePullsWait) {
  for (const std::vector<int>& signals : std::vector<std::vector<int>>{{SIGTERM}, {SIGINT}, {SIGTERM, SIGTERM}}) {
    ChildProcess server(Command());
    const auto address = server.WaitForOutput("listening on ");
    ASSERT_TRUE(address.has_value()) << server.Stderr();
    const auto stub = v1::ParameterServer::NewStub(MakeChannel(*address));
    const TestJob job;
    {
      grpc::ClientContext context;
      v1::OpenJobResponse response;
      const grpc::Status opened = stub->OpenJob(&context, job.Open(), &response);
      ASSERT_TRUE(opened.ok()) << opened.error_message() << server.Stderr();
    }
    grpc::ClientContext context;
    const v1::PullRequest request = job.Pull(1, {});
    v1::PullResponse response;
    CallEnd end;
    stub->async()->Pull(&context, &request, &response, [&end](const grpc::Status& result) { end.Set(result); });
    {
      // Answered after the waiting one has arrived: both travel on one connection, in order.
      grpc::ClientContext other;
      v1::PullResponse ignored;
      ASSERT_TRUE(stub->Pull(&other, job.Pull(0, {}), &ignored).ok());
    }
    const absl::Time start = absl::Now();
    for (const int signal : signals) server.Signal(signal);
    EXPECT_EQ(server.Wait(absl::Seconds(20)), 0) << server.Stderr();
    EXPECT_LT(absl::Now() - start, absl::Seconds(8));
    EXPECT_TRUE(absl::IsUnavailable(end.Wait())) << end.Wait();
  }
}

}  // namespace
}  // namespace sparrow
