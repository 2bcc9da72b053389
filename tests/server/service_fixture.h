#ifndef SPARROW_TESTS_SERVER_SERVICE_FIXTURE_H_
#define SPARROW_TESTS_SERVER_SERVICE_FIXTURE_H_

// A shard behind a real loopback connection.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/rpc.h"
#include "gtest/gtest.h"
#include "server/metrics.h"
#include "server/service.h"
#include "sparrow/v1/parameter_server.grpc.pb.h"
#include "tests/server/call_end.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {

// An asynchronous pull whose caller may give up.
struct WirePull {
  WirePull(v1::ParameterServer::Stub* stub, v1::PullRequest pull, absl::Duration timeout = absl::Seconds(60))
      : request(std::move(pull)) {
    context.set_deadline(DeadlineAfter(timeout));
    stub->async()->Pull(&context, &request, &response, [this](const grpc::Status& result) { end.Set(result); });
  }
  ~WirePull() {
    context.TryCancel();
    end.Wait().IgnoreError();
  }
  absl::Status Wait() { return end.Wait(); }

  grpc::ClientContext context;
  const v1::PullRequest request;
  v1::PullResponse response;
  CallEnd end;
};

class ServiceFixture : public ::testing::Test {
 protected:
  explicit ServiceFixture(uint64_t memory_bytes = uint64_t{256} << 20) : server_(uint64_t{64} << 20, memory_bytes) {
    service_ = MakeParameterServerService(server_.shard.get());
    auto listening = StartGrpcServer("127.0.0.1:0", {service_.get()});
    CHECK(listening.ok()) << listening.status();
    grpc_ = *std::move(listening);
    stub_ = v1::ParameterServer::NewStub(MakeChannel(grpc_.address));
  }
  ~ServiceFixture() override {
    server_.shard->Shutdown();
    grpc_.server->Shutdown(DeadlineAfter(absl::Seconds(10)));
    grpc_.server.reset();
  }

  absl::Status Open(const TestJob& job) {
    grpc::ClientContext context;
    v1::OpenJobResponse response;
    return FromGrpcStatus(stub_->OpenJob(&context, job.Open(), &response));
  }
  absl::Status Push(const v1::PushRequest& request, v1::PushResponse* response = nullptr) {
    grpc::ClientContext context;
    v1::PushResponse ignored;
    return FromGrpcStatus(stub_->Push(&context, request, response == nullptr ? &ignored : response));
  }
  absl::StatusOr<v1::PullResponse> Pull(const v1::PullRequest& request) {
    WirePull pull(stub_.get(), request);
    if (absl::Status status = pull.Wait(); !status.ok()) return status;
    return pull.response;
  }
  double WaitingPulls() { return ServerMetrics(&server_.metrics).waiting_pulls.Value(); }
  bool WaitForWaitingPulls(double count) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (WaitingPulls() != count && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
    return WaitingPulls() == count;
  }
  // Sends bytes as they are, past the client's own limits.
  absl::Status Raw(const std::string& method, const std::string& bytes) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(-1);
    if (raw_channel_ == nullptr) {
      raw_channel_ = grpc::CreateCustomChannel(grpc_.address, grpc::InsecureChannelCredentials(), arguments);
    }
    grpc::GenericStub stub(raw_channel_);
    grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1), response;
    grpc::ClientContext context;
    CallEnd end;
    stub.UnaryCall(&context, "/sparrow.v1.ParameterServer/" + method, grpc::StubOptions(), &request, &response,
                   [&end](const grpc::Status& result) { end.Set(result); });
    return end.Wait();
  }

  TestShard server_;
  std::unique_ptr<grpc::Service> service_;
  ListeningServer grpc_;
  std::unique_ptr<v1::ParameterServer::Stub> stub_;
  std::shared_ptr<grpc::Channel> raw_channel_;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SERVER_SERVICE_FIXTURE_H_
