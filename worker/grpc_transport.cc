#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/rpc.h"
#include "sparrow/v1/parameter_server.grpc.pb.h"
#include "worker/ps_transport.h"

namespace sparrow {
namespace {

// One attempt a call; repeating is the client's business (worker/ps_client.h).
class GrpcTransport final : public PsTransport {
 public:
  explicit GrpcTransport(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::ParameterServer::NewStub(std::move(channel))) {}

  ~GrpcTransport() override {
    Cancel();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](int64_t* in_flight) { return *in_flight == 0; }, &in_flight_));
  }

  void Pull(const v1::PullRequest* request, v1::PullResponse* response, absl::Duration timeout, Done done) override {
    Call(&Stub::Pull, request, response, timeout, std::move(done));
  }
  void Push(const v1::PushRequest* request, v1::PushResponse* response, absl::Duration timeout, Done done) override {
    Call(&Stub::Push, request, response, timeout, std::move(done));
  }
  void OpenJob(const v1::OpenJobRequest* request, v1::OpenJobResponse* response, absl::Duration timeout,
               Done done) override {
    Call(&Stub::OpenJob, request, response, timeout, std::move(done));
  }
  void SaveTables(const v1::SaveTablesRequest* request, v1::SaveTablesResponse* response, absl::Duration timeout,
                  Done done) override {
    Call(&Stub::SaveTables, request, response, timeout, std::move(done));
  }
  void CloseJob(const v1::CloseJobRequest* request, v1::CloseJobResponse* response, absl::Duration timeout,
                Done done) override {
    Call(&Stub::CloseJob, request, response, timeout, std::move(done));
  }

  void Cancel() override {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }

 private:
  using Stub = v1::ParameterServer::StubInterface::async_interface;
  template <typename Request, typename Response>
  using Method = void (Stub::*)(grpc::ClientContext*, const Request*, Response*, std::function<void(grpc::Status)>);

  template <typename Request, typename Response>
  void Call(Method<Request, Response> method, const Request* request, Response* response, absl::Duration timeout,
            Done done) {
    auto* context = new grpc::ClientContext;  // Deleted by the call's end, below.
    context->set_deadline(DeadlineAfter(timeout));
    {
      absl::MutexLock lock(&mu_);
      if (!cancelled_) {
        contexts_.insert(context);
        ++in_flight_;
      } else {
        delete context;
        context = nullptr;
      }
    }
    if (context == nullptr) {
      done(absl::CancelledError("the call was cancelled before it was sent"));
      return;
    }
    (stub_->async()->*method)(context, request, response, [this, context, done = std::move(done)](grpc::Status status) {
      {
        absl::MutexLock lock(&mu_);
        contexts_.erase(context);
      }
      delete context;
      done(FromGrpcStatus(status));
      absl::MutexLock lock(&mu_);
      --in_flight_;  // Last, so that the destructor waits for `done`.
    });
  }

  const std::unique_ptr<v1::ParameterServer::Stub> stub_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  int64_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

PsTransportFactory GrpcTransportFactory(absl::Duration connect_timeout) {
  return [connect_timeout](const std::string& address) -> absl::StatusOr<std::unique_ptr<PsTransport>> {
    std::shared_ptr<grpc::Channel> channel = MakeChannel(address);
    const absl::Status connected = WaitForChannel(channel.get(), "parameter server", address, connect_timeout);
    if (!connected.ok()) return connected;
    return std::make_unique<GrpcTransport>(std::move(channel));
  };
}

}  // namespace sparrow
