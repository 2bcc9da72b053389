#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/rpc.h"
#include "embedding/row_codec.h"
#include "proto/row_message.h"
#include "sparrow/v1/parameter_server.grpc.pb.h"
#include "worker/ps_transport.h"

namespace sparrow {
namespace {

constexpr char kPullMethod[] = "/sparrow.v1.ParameterServer/Pull";
constexpr char kPushMethod[] = "/sparrow.v1.ParameterServer/Push";

// One attempt a call; repeating is the client's business (worker/ps_client.h). Pulls and pushes go past the generated
// code: proto/row_message.h.
class GrpcTransport final : public PsTransport {
 public:
  // Pulls and pushes take turns on the channels, the other calls go over the first.
  explicit GrpcTransport(const std::vector<std::shared_ptr<grpc::Channel>>& channels)
      : stub_(v1::ParameterServer::NewStub(channels[0])) {
    for (const auto& channel : channels) raw_stubs_.push_back(std::make_unique<RawStub>(channel));
  }

  ~GrpcTransport() override {
    Cancel();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](int64_t* in_flight) { return *in_flight == 0; }, &in_flight_));
  }

  void Pull(const RowPull* request, v1::PullResponse* response, absl::Duration timeout, Done done) override {
    const std::shared_ptr<RawCall> call = MakeCall(timeout, std::move(done));
    if (call == nullptr) return;
    call->end = [request, response](const grpc::ByteBuffer& answer) { return DecodePull(answer, *request, response); };
    bool own_buffer;
    grpc::SerializationTraits<v1::PullRequest>::Serialize(request->message, &call->request, &own_buffer);
    Send(kPullMethod, call);
  }
  void Push(const RowPush* request, v1::PushResponse* response, absl::Duration timeout, Done done) override {
    const std::shared_ptr<RawCall> call = MakeCall(timeout, std::move(done));
    if (call == nullptr) return;
    call->end = [response](const grpc::ByteBuffer& answer) {
      grpc::ByteBuffer copy(answer);
      return FromGrpcStatus(grpc::SerializationTraits<v1::PushResponse>::Deserialize(&copy, response));
    };
    call->request = EncodePushRequest(request->message, request->beside, call);
    Send(kPushMethod, call);
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

  // Two of them take as long as the 1.1 MB of 4,096 rows of 64 numbers, which is where splitting begins to pay.
  uint64_t ChunkBytes() const override { return 640 << 10; }

  void Cancel() override {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }

 private:
  using Stub = v1::ParameterServer::StubInterface::async_interface;
  template <typename Request, typename Response>
  using Method = void (Stub::*)(grpc::ClientContext*, const Request*, Response*, std::function<void(grpc::Status)>);

  using RawStub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>;
  using Context = std::unique_ptr<grpc::ClientContext>;

  // A pull or a push, shared by gRPC, which ends the call, and by every slice that points into the caller's memory: the
  // last of them to go tells the caller. The context goes before: a stream that was cut short keeps its slices until
  // then.
  struct RawCall {
    RawCall(GrpcTransport* transport, Context context, Done done)
        : transport(transport), context(std::move(context)), done(std::move(done)) {}
    ~RawCall() { transport->Ended(std::move(status), done); }

    GrpcTransport* const transport;
    Context context;
    const Done done;
    std::function<absl::Status(const grpc::ByteBuffer&)> end;  // Takes the answer.
    grpc::ByteBuffer request;
    grpc::ByteBuffer answer;
    absl::Status status = absl::CancelledError("the call was not sent");
  };

  static absl::Status DecodePull(const grpc::ByteBuffer& answer, const RowPull& request, v1::PullResponse* response) {
    const RowType type = static_cast<RowType>(request.message.row_type());
    std::vector<RowsAsked> asked;
    std::vector<uint32_t> dims;
    for (size_t i = 0; i < request.rows.size(); ++i) {
      const v1::TableKeys& keys = request.message.tables(static_cast<int>(i));
      const uint64_t n = keys.keys().size() / sizeof(uint64_t);
      dims.push_back(n == 0 ? 0 : static_cast<uint32_t>(request.rows[i].size() / n));
      asked.push_back({.table = keys.table(), .rows = n, .row_bytes = RowWireBytes(type, dims[i])});
    }
    return DecodePullResponse(
        answer, asked, request.message.row_type(),
        [&](size_t i, uint64_t first, uint64_t n, const char* bytes) {
          DecodeRows(type, bytes, n, dims[i], request.rows[i].subspan(first * dims[i], n * dims[i]));
        },
        response);
  }

  // Null if the transport has been cancelled.
  Context MakeContext(absl::Duration timeout) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(DeadlineAfter(timeout));
    absl::MutexLock lock(&mu_);
    if (cancelled_) return nullptr;
    contexts_.insert(context.get());
    ++in_flight_;
    return context;
  }
  void Forget(Context context) {
    absl::MutexLock lock(&mu_);
    contexts_.erase(context.get());
  }
  void Ended(absl::Status status, const Done& done) {
    done(std::move(status));
    absl::MutexLock lock(&mu_);
    --in_flight_;  // Last, so that the destructor waits for `done`.
  }
  static absl::Status CancelledHere() { return absl::CancelledError("the call was cancelled before it was sent"); }

  // Null, and `done` is told, if the transport has been cancelled.
  std::shared_ptr<RawCall> MakeCall(absl::Duration timeout, Done done) {
    Context context = MakeContext(timeout);
    if (context == nullptr) {
      done(CancelledHere());
      return nullptr;
    }
    return std::make_shared<RawCall>(this, std::move(context), std::move(done));
  }

  void Send(const char* method, std::shared_ptr<RawCall> call) {
    RawCall* const sent = call.get();
    RawStub* const stub = raw_stubs_[turn_.fetch_add(1, std::memory_order_relaxed) % raw_stubs_.size()].get();
    stub->UnaryCall(sent->context.get(), method, grpc::StubOptions(), &sent->request, &sent->answer,
                    [call = std::move(call)](const grpc::Status& status) {
                      call->status = FromGrpcStatus(status);
                      if (status.ok()) call->status = call->end(call->answer);
                      call->answer.Clear();
                      call->request.Clear();  // Its slices hold the call.
                      call->transport->Forget(std::move(call->context));
                    });
  }

  template <typename Request, typename Response>
  void Call(Method<Request, Response> method, const Request* request, Response* response, absl::Duration timeout,
            Done done) {
    Context context = MakeContext(timeout);
    if (context == nullptr) return done(CancelledHere());
    grpc::ClientContext* const sent = context.release();
    (stub_->async()->*method)(sent, request, response, [this, sent, done = std::move(done)](grpc::Status status) {
      Forget(Context(sent));
      Ended(FromGrpcStatus(status), done);
    });
  }

  const std::unique_ptr<v1::ParameterServer::Stub> stub_;
  std::vector<std::unique_ptr<RawStub>> raw_stubs_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  int64_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mu_);

  std::atomic<size_t> turn_{0};  // Relaxed: only chooses.
};

}  // namespace

PsTransportFactory GrpcTransportFactory(absl::Duration connect_timeout) {
  return [connect_timeout](const std::string& address) -> absl::StatusOr<std::unique_ptr<PsTransport>> {
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    for (int i = 0; i < kConnections; ++i) channels.push_back(MakeChannel(address, Traffic::kRows));
    for (const auto& channel : channels) {
      const absl::Status connected = WaitForChannel(channel.get(), "parameter server", address, connect_timeout);
      if (!connected.ok()) return connected;
    }
    return std::make_unique<GrpcTransport>(channels);
  };
}

}  // namespace sparrow
