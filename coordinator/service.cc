#include "coordinator/service.h"

#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/rpc.h"
#include "sparrow/v1/coordinator.grpc.pb.h"

namespace sparrow {
namespace {

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// One watch. It keeps itself alive until gRPC is done with it (OnDone).
class WatchReactor final : public grpc::ServerWriteReactor<v1::JobStatus>, public JobWatcher {
 public:
  static WatchReactor* Start(ControlPlane* plane, const CoordinatorMetrics* metrics, std::string job_id) {
    auto reactor = std::make_shared<WatchReactor>(plane, metrics, std::move(job_id));
    reactor->self_ = reactor;
    WatchReactor* const raw = reactor.get();
    // If there is no such job, Pump finds the same error and ends the call with it.
    plane->Watch(raw->job_id_, reactor).IgnoreError();
    raw->Pump();
    return raw;
  }

  WatchReactor(ControlPlane* plane, const CoordinatorMetrics* metrics, std::string job_id)
      : plane_(plane), metrics_(metrics), job_id_(std::move(job_id)) {
    metrics_->watchers.Add(1);
  }

  void OnChange() override { Pump(); }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      if (!ok) cancelled_ = true;
    }
    Pump();
  }

  void OnCancel() override {
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
    }
    Pump();
  }

  void OnDone() override {
    {
      // gRPC has counted the calls back to us; ThreadSanitizer does not see that, but it sees the lock that they took.
      absl::MutexLock lock(&mu_);
      finished_ = true;
    }
    metrics_->watchers.Add(-1);
    metrics_->rpc_seconds.at("WatchJob").Observe(stopwatch_.Seconds());
    // The control plane may hold another reference for the length of a call: whoever drops the last one deletes.
    const std::shared_ptr<WatchReactor> last = std::move(self_);
  }

 private:
  enum class Action { kNone, kWrite, kFinish };

  // Sends the status if it is another one than that sent last; ends the call after a final one, or an error.
  void Pump() {
    absl::StatusOr<ControlPlane::Snapshot> now = plane_->Look(job_id_);
    const absl::Status end = now.status();
    // Without the lock, as gRPC may call back at once: no other Pump acts until this action is complete.
    switch (Decide(std::move(now))) {
      case Action::kNone:
        return;
      case Action::kWrite:
        StartWrite(&status_);
        return;
      case Action::kFinish:
        Finish(ToGrpcStatus(end));
        return;
    }
  }

  Action Decide(absl::StatusOr<ControlPlane::Snapshot> now) {
    absl::MutexLock lock(&mu_);
    if (finished_ || writing_) return Action::kNone;
    if (!cancelled_ && now.ok() && now->version > sent_) {
      sent_ = now->version;
      sent_final_ = now->final;
      status_ = std::move(now->status);
      writing_ = true;
      return Action::kWrite;
    }
    if (!cancelled_ && now.ok() && !sent_final_) return Action::kNone;  // Nothing new.
    finished_ = true;
    return Action::kFinish;
  }

  ControlPlane* const plane_;
  const CoordinatorMetrics* const metrics_;
  const std::string job_id_;
  const Stopwatch stopwatch_;
  // Its owners: itself, until OnDone; and the control plane, while it calls OnChange.
  std::shared_ptr<WatchReactor> self_;

  absl::Mutex mu_;
  uint64_t sent_ ABSL_GUARDED_BY(mu_) = 0;
  bool sent_final_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  v1::JobStatus status_;  // gRPC reads it while writing_; nobody else touches it then.
};

class Service final : public v1::Coordinator::CallbackService {
 public:
  Service(ControlPlane* plane, const CoordinatorMetrics* metrics) : plane_(plane), metrics_(metrics) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* Register(Context* context, const v1::RegisterRequest* request, v1::RegisterResponse* response) override {
    return Answer(context, "Register", response, [&] { return plane_->Register(*request); });
  }
  Reactor* Heartbeat(Context* context, const v1::HeartbeatRequest* request, v1::HeartbeatResponse* response) override {
    return Answer(context, "Heartbeat", response, [&] { return plane_->Heartbeat(*request); });
  }
  Reactor* Leave(Context* context, const v1::LeaveRequest* request, v1::LeaveResponse* response) override {
    return Answer(context, "Leave", response, [&] { return OrEmpty(plane_->Leave(*request), *response); });
  }
  Reactor* Report(Context* context, const v1::ReportRequest* request, v1::ReportResponse* response) override {
    return Answer(context, "Report", response, [&] { return plane_->Report(*request); });
  }
  Reactor* PutRendezvous(Context* context, const v1::PutRendezvousRequest* request,
                         v1::PutRendezvousResponse* response) override {
    return Answer(context, "PutRendezvous", response,
                  [&] { return OrEmpty(plane_->PutRendezvous(*request), *response); });
  }
  Reactor* GetRendezvous(Context* context, const v1::GetRendezvousRequest* request,
                         v1::GetRendezvousResponse* response) override {
    Reactor* const reactor = context->DefaultReactor();
    plane_->GetRendezvous(
        *request, [this, reactor, response, stopwatch = Stopwatch()](absl::StatusOr<v1::GetRendezvousResponse> result) {
          if (result.ok()) *response = *std::move(result);
          metrics_->rpc_seconds.at("GetRendezvous").Observe(stopwatch.Seconds());
          reactor->Finish(ToGrpcStatus(result.status()));
        });
    return reactor;
  }
  Reactor* Submit(Context* context, const v1::SubmitRequest* request, v1::SubmitResponse* response) override {
    return Answer(context, "Submit", response, [&] { return plane_->Submit(*request); });
  }
  Reactor* ListJobs(Context* context, const v1::ListJobsRequest*, v1::ListJobsResponse* response) override {
    return Answer(context, "ListJobs", response,
                  [&] { return absl::StatusOr<v1::ListJobsResponse>(plane_->ListJobs()); });
  }
  Reactor* GetJob(Context* context, const v1::GetJobRequest* request, v1::GetJobResponse* response) override {
    return Answer(context, "GetJob", response, [&] { return plane_->GetJob(request->job_id()); });
  }
  grpc::ServerWriteReactor<v1::JobStatus>* WatchJob(Context*, const v1::WatchJobRequest* request) override {
    return WatchReactor::Start(plane_, metrics_, request->job_id());
  }
  Reactor* CancelJob(Context* context, const v1::CancelJobRequest* request, v1::CancelJobResponse* response) override {
    return Answer(context, "CancelJob", response,
                  [&] { return OrEmpty(plane_->CancelJob(request->job_id()), *response); });
  }
  Reactor* GetCluster(Context* context, const v1::GetClusterRequest*, v1::GetClusterResponse* response) override {
    return Answer(context, "GetCluster", response,
                  [&] { return absl::StatusOr<v1::GetClusterResponse>(plane_->GetCluster()); });
  }

 private:
  template <typename Response>
  static absl::StatusOr<Response> OrEmpty(const absl::Status& status, const Response&) {
    if (!status.ok()) return status;
    return Response();
  }

  template <typename Response, typename Call>
  Reactor* Answer(Context* context, const char* method, Response* response, const Call& call) {
    const Stopwatch stopwatch;
    absl::StatusOr<Response> result = call();
    if (result.ok()) *response = *std::move(result);
    metrics_->rpc_seconds.at(method).Observe(stopwatch.Seconds());
    Reactor* const reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(result.status()));
    return reactor;
  }

  ControlPlane* const plane_;
  const CoordinatorMetrics* const metrics_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCoordinatorService(ControlPlane* plane, const CoordinatorMetrics* metrics) {
  return std::make_unique<Service>(plane, metrics);
}

}  // namespace sparrow
