#include "server/service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/rpc.h"
#include "proto/row_message.h"
#include "server/call_memory.h"
#include "server/kept_pool.h"
#include "sparrow/v1/parameter_server.grpc.pb.h"

namespace sparrow {
namespace {

// A few threads for calls that may take long. Thread-safe.
class SlowLane {
 public:
  SlowLane() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Run(); });
  }
  // Waits for what has been accepted.
  ~SlowLane() {
    {
      absl::MutexLock lock(&mu_);
      closed_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

  // False if too much is waiting already.
  bool Run(std::function<void()> work) {
    absl::MutexLock lock(&mu_);
    if (work_.size() >= kWaitingMax) return false;
    work_.push_back(std::move(work));
    return true;
  }

 private:
  static constexpr int kThreads = 4;
  static constexpr size_t kWaitingMax = 4096;

  void Run() {
    for (;;) {
      std::function<void()> work;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &SlowLane::CanRun));
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }
  bool CanRun() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_ || !work_.empty(); }

  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

// Parses what a client sent. The message may hold leftovers; they are overwritten. The buffer is empty afterwards: the
// call that it belongs to would keep its bytes to the end, beside the message. *memory is what the call uses then.
template <typename Message>
absl::Status Parse(grpc::ByteBuffer* buffer, CallMemory* call_memory, Message* message, CallMemory::Hold* memory) {
  const uint64_t bytes = buffer->Length();
  *memory = call_memory->Use(2 * bytes);
  const grpc::Status status = grpc::SerializationTraits<Message>::Deserialize(buffer, message);
  buffer->Clear();
  memory->Resize(bytes);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the message of ", bytes, " bytes is not a ",
                                                 Message::descriptor()->name(), ": ", status.error_message()));
}

// The callback API hands requests out as const; the buffer itself is the call's own, and not.
grpc::ByteBuffer* Mutable(const grpc::ByteBuffer* request) { return const_cast<grpc::ByteBuffer*>(request); }

// What calls share; lives until the last of them and the last byte of an answer is gone, which may be after the
// service.
struct Pools {
  explicit Pools(std::shared_ptr<CallMemory> call_memory) : memory(std::move(call_memory)) {}

  const std::shared_ptr<CallMemory> memory;  // Shared with the shard.
  KeptPool<v1::PullRequest> pull_requests{memory.get(), CallMemory::Kind::kPullRequests};
  KeptPool<v1::PullResponse> pull_responses{memory.get(), CallMemory::Kind::kPullResponses};
  KeptPool<v1::PushRequest> push_requests{memory.get(), CallMemory::Kind::kPushRequests};
};

// A response, which goes back to its pool when the last holder lets go of it, and what it holds.
struct PooledResponse {
  explicit PooledResponse(std::shared_ptr<Pools> pools_in)
      : pools(std::move(pools_in)), message(pools->pull_responses.Take()) {}
  ~PooledResponse() {
    memory.Resize(0);
    pools->pull_responses.Return(std::move(message));
  }

  const std::shared_ptr<Pools> pools;
  std::unique_ptr<v1::PullResponse> message;
  CallMemory::Hold memory;
};

// One Pull. gRPC and the thread that starts it each hold it until they are through with it.
class PullCall final : public grpc::ServerUnaryReactor {
 public:
  PullCall(Shard* shard, std::shared_ptr<Pools> pools, grpc::ByteBuffer* answer)
      : shard_(shard), pools_(std::move(pools)), answer_(answer), request_(pools_->pull_requests.Take()) {}

  void Start(grpc::ByteBuffer* buffer) {
    const absl::Status parsed = Parse(buffer, pools_->memory.get(), request_.get(), &request_memory_);
    if (!parsed.ok()) {
      Finish(ToGrpcStatus(parsed));
    } else {
      // Shared with gRPC, which may send its rows after the call is done; the pool gets it back then.
      response_ = std::make_shared<PooledResponse>(pools_);
      const uint64_t id =
          shard_->Pull(request_.get(), response_->message.get(), [this](absl::Status status) { End(status); });
      id_.store(id);
      if (cancelled_.load()) shard_->CancelPull(id);
    }
    Release();
  }

  void OnCancel() override {
    cancelled_.store(true);
    const uint64_t id = id_.load();
    if (id != 0) shard_->CancelPull(id);
  }
  void OnDone() override { Release(); }

 private:
  void End(const absl::Status& status) {
    if (status.ok()) {
      *answer_ = EncodePullResponse({response_, response_->message.get()});
      response_->memory = pools_->memory->Use(answer_->Length());
    }
    response_.reset();
    Finish(ToGrpcStatus(status));
  }
  void Release() {
    if (holders_.fetch_sub(1) != 1) return;
    request_memory_.Resize(0);
    pools_->pull_requests.Return(std::move(request_));
    delete this;
  }

  Shard* const shard_;
  const std::shared_ptr<Pools> pools_;  // Shared by all calls and answers.
  grpc::ByteBuffer* const answer_;
  std::unique_ptr<v1::PullRequest> request_;
  CallMemory::Hold request_memory_;
  std::shared_ptr<PooledResponse> response_;

  // Sequentially consistent: of the starter, which writes id_ and reads cancelled_, and OnCancel, which does the
  // opposite, at least one sees the other.
  std::atomic<uint64_t> id_{0};  // 0: the shard has not returned yet.
  std::atomic<bool> cancelled_{false};
  std::atomic<int> holders_{2};
};

using CallbackService = v1::ParameterServer::WithRawCallbackMethod_Pull<v1::ParameterServer::WithRawCallbackMethod_Push<
    v1::ParameterServer::WithCallbackMethod_OpenJob<v1::ParameterServer::WithCallbackMethod_SaveTables<
        v1::ParameterServer::WithCallbackMethod_CloseJob<v1::ParameterServer::Service>>>>>;

class ParameterServerService final : public CallbackService {
 public:
  explicit ParameterServerService(Shard* shard)
      : shard_(shard), pools_(std::make_shared<Pools>(shard->call_memory())) {}

  grpc::ServerUnaryReactor* Pull(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override {
    auto* call = new PullCall(shard_, pools_, response);  // Deletes itself.
    call->Start(Mutable(request));
    return call;
  }

  grpc::ServerUnaryReactor* Push(grpc::CallbackServerContext* context, const grpc::ByteBuffer* buffer,
                                 grpc::ByteBuffer* answer) override {
    std::unique_ptr<v1::PushRequest> request = pools_->push_requests.Take();
    v1::PushResponse response;
    CallMemory::Hold memory;
    absl::Status status = Parse(Mutable(buffer), pools_->memory.get(), request.get(), &memory);
    if (status.ok()) status = shard_->Push(*request, &response);
    memory.Resize(0);
    pools_->push_requests.Return(std::move(request));
    grpc::Status result = ToGrpcStatus(status);
    if (result.ok()) {
      bool own_buffer;
      result = grpc::SerializationTraits<v1::PushResponse>::Serialize(response, answer, &own_buffer);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(result);
    return reactor;
  }

  grpc::ServerUnaryReactor* OpenJob(grpc::CallbackServerContext* context, const v1::OpenJobRequest* request,
                                    v1::OpenJobResponse* response) override {
    return Slowly(context, [this, request, response] { return shard_->OpenJob(*request, response); });
  }
  grpc::ServerUnaryReactor* SaveTables(grpc::CallbackServerContext* context, const v1::SaveTablesRequest* request,
                                       v1::SaveTablesResponse* response) override {
    return Slowly(context, [this, request, response] { return shard_->SaveTables(*request, response); });
  }
  grpc::ServerUnaryReactor* CloseJob(grpc::CallbackServerContext* context, const v1::CloseJobRequest* request,
                                     v1::CloseJobResponse* response) override {
    return Slowly(context, [this, request, response] { return shard_->CloseJob(*request, response); });
  }

 private:
  grpc::ServerUnaryReactor* Slowly(grpc::CallbackServerContext* context, std::function<absl::Status()> call) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!lane_.Run([reactor, call = std::move(call)] { reactor->Finish(ToGrpcStatus(call())); })) {
      reactor->Finish(
          grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls wait to open, save or close jobs"));
    }
    return reactor;
  }

  Shard* const shard_;
  const std::shared_ptr<Pools> pools_;  // Shared with calls and answers under way.
  SlowLane lane_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeParameterServerService(Shard* shard) {
  return std::make_unique<ParameterServerService>(shard);
}

}  // namespace sparrow
