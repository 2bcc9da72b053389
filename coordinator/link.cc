#include "coordinator/link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/rpc.h"
#include "coordinator/version.h"
#include "sparrow/v1/coordinator.grpc.pb.h"

namespace sparrow {
namespace {

constexpr absl::Duration kRetryPause = absl::Milliseconds(100);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

// Names one call among all that ever are: two draws of 64 bits.
std::string RandomRequestId() {
  std::random_device device;
  const auto draw = [&device] { return (uint64_t{device()} << 32) | device(); };
  return absl::StrCat(absl::Hex(draw(), absl::kZeroPad16), absl::Hex(draw(), absl::kZeroPad16));
}

// Waits before a retry. False: cancelled meanwhile.
bool Pause(Cancellation* cancellation, absl::Duration time) {
  if (cancellation != nullptr) return !cancellation->WaitFor(time);
  Cancellation never;
  return !never.WaitFor(time);
}

// A call that the other end cancelled, not we: its server is shutting down.
absl::Status CancelledIsUnavailable(absl::Status status) {
  return absl::IsCancelled(status) ? absl::UnavailableError("the coordinator is shutting down") : status;
}

bool IsFinal(v1::JobStatus::State state) {
  return state == v1::JobStatus::SUCCEEDED || state == v1::JobStatus::FAILED || state == v1::JobStatus::CANCELLED;
}

}  // namespace

struct CoordinatorLink::Stub {
  std::shared_ptr<grpc::Channel> channel;  // Shared with whoever made it: members of one process have one.
  std::unique_ptr<v1::Coordinator::Stub> rpc;
};

CoordinatorLink::CoordinatorLink(std::shared_ptr<grpc::Channel> channel, std::string address)
    : address_(std::move(address)), stub_(new Stub{channel, v1::Coordinator::NewStub(channel)}) {}

CoordinatorLink::~CoordinatorLink() = default;

absl::StatusOr<std::unique_ptr<CoordinatorLink>> CoordinatorLink::Connect(const std::string& address,
                                                                          absl::Duration timeout) {
  std::shared_ptr<grpc::Channel> channel = MakeChannel(address);
  absl::Status connected = WaitForChannel(channel.get(), "coordinator", address, timeout);
  if (!connected.ok()) return connected;
  return std::make_unique<CoordinatorLink>(std::move(channel), address);
}

absl::Status CoordinatorLink::Explain(const char* name, const absl::Status& status, absl::Duration timeout) const {
  const std::string who = address_.empty() ? "coordinator" : absl::StrCat("coordinator ", address_);
  const bool http = absl::StrContains(status.message(), "Received http2 header with status");
  if (http || absl::IsUnimplemented(status)) {
    return absl::Status(
        status.code(),
        absl::StrCat(address_, " is not a coordinator: ",
                     http ? absl::StrCat("a web server answers there (", status.message(), ")")
                          : absl::StrCat("a gRPC service that does not know ", name,
                                         " answers there, such as a sparrow-server or another version's coordinator"),
                     "; give the address that sparrow-coordinator printed when it started"));
  }
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(absl::StrCat(who, " is not reached (", name, ", tried for ",
                                               absl::FormatDuration(timeout), "): ", status.message(),
                                               "; is it running?"));
  }
  if (absl::IsDeadlineExceeded(status) && status.message() == "Deadline Exceeded") {  // gRPC's own words.
    return absl::DeadlineExceededError(
        absl::StrCat(who, " did not answer ", name, " within ", absl::FormatDuration(timeout), "; is it overloaded?"));
  }
  return absl::Status(status.code(), absl::StrCat(who, ": ", status.message()));
}

template <typename Request, typename Response, typename Method>
absl::Status CoordinatorLink::Call(const char* name, Method method, const Request& request, const CallOptions& options,
                                   Response* response) {
  const absl::Time deadline = absl::Now() + options.timeout;
  for (;;) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    absl::Status status;
    {
      Cancellation::Scope scope(options.cancellation, &context);
      status = FromGrpcStatus((stub_->rpc.get()->*method)(&context, request, response));
    }
    if (status.ok()) return status;
    if (options.cancellation != nullptr && options.cancellation->cancelled()) {
      return absl::CancelledError(absl::StrCat(name, " was given up"));
    }
    status = CancelledIsUnavailable(std::move(status));
    const absl::Duration left = deadline - absl::Now();
    if (!IsRetryable(status) || left <= absl::ZeroDuration()) return Explain(name, status, options.timeout);
    Pause(options.cancellation, std::min(kRetryPause, left));
  }
}

absl::StatusOr<v1::RegisterResponse> CoordinatorLink::Register(const v1::RegisterRequest& request,
                                                               const CallOptions& options) {
  v1::RegisterRequest filled = request;
  if (filled.version().empty()) filled.set_version(kVersion);
  if (filled.request_id().empty()) filled.set_request_id(RandomRequestId());
  v1::RegisterResponse response;
  absl::Status status = Call("Register", &v1::Coordinator::Stub::Register, filled, options, &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::HeartbeatResponse> CoordinatorLink::Heartbeat(const v1::HeartbeatRequest& request,
                                                                 const CallOptions& options) {
  v1::HeartbeatResponse response;
  absl::Status status = Call("Heartbeat", &v1::Coordinator::Stub::Heartbeat, request, options, &response);
  if (!status.ok()) return status;
  return response;
}

absl::Status CoordinatorLink::Leave(const v1::LeaveRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(kLeaveTimeout));
  v1::LeaveResponse response;
  absl::Status status = FromGrpcStatus(stub_->rpc->Leave(&context, request, &response));
  return status.ok() ? status : Explain("Leave", status, kLeaveTimeout);
}

absl::StatusOr<v1::ReportResponse> CoordinatorLink::Report(const v1::ReportRequest& request,
                                                           const CallOptions& options) {
  v1::ReportResponse response;
  absl::Status status = Call("Report", &v1::Coordinator::Stub::Report, request, options, &response);
  if (!status.ok()) return status;
  return response;
}

absl::Status CoordinatorLink::PutRendezvous(const v1::PutRendezvousRequest& request, const CallOptions& options) {
  v1::PutRendezvousResponse response;
  return Call("PutRendezvous", &v1::Coordinator::Stub::PutRendezvous, request, options, &response);
}

absl::StatusOr<v1::GetRendezvousResponse> CoordinatorLink::GetRendezvous(const v1::GetRendezvousRequest& request,
                                                                         const CallOptions& options) {
  CallOptions longer = options;
  longer.timeout += absl::Milliseconds(request.timeout_ms());
  v1::GetRendezvousResponse response;
  absl::Status status = Call("GetRendezvous", &v1::Coordinator::Stub::GetRendezvous, request, longer, &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::SubmitResponse> CoordinatorLink::Submit(const v1::SubmitRequest& request,
                                                           const CallOptions& options) {
  v1::SubmitRequest filled = request;
  if (filled.request_id().empty()) filled.set_request_id(RandomRequestId());
  v1::SubmitResponse response;
  absl::Status status = Call("Submit", &v1::Coordinator::Stub::Submit, filled, options, &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::ListJobsResponse> CoordinatorLink::ListJobs(const CallOptions& options) {
  v1::ListJobsResponse response;
  absl::Status status = Call("ListJobs", &v1::Coordinator::Stub::ListJobs, v1::ListJobsRequest(), options, &response);
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::GetJobResponse> CoordinatorLink::GetJob(const std::string& job_id, const CallOptions& options) {
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  v1::GetJobResponse response;
  absl::Status status = Call("GetJob", &v1::Coordinator::Stub::GetJob, request, options, &response);
  if (!status.ok()) return status;
  return response;
}

absl::Status CoordinatorLink::CancelJob(const std::string& job_id, const CallOptions& options) {
  v1::CancelJobRequest request;
  request.set_job_id(job_id);
  v1::CancelJobResponse response;
  return Call("CancelJob", &v1::Coordinator::Stub::CancelJob, request, options, &response);
}

absl::StatusOr<v1::GetClusterResponse> CoordinatorLink::GetCluster(const CallOptions& options) {
  v1::GetClusterResponse response;
  absl::Status status =
      Call("GetCluster", &v1::Coordinator::Stub::GetCluster, v1::GetClusterRequest(), options, &response);
  if (!status.ok()) return status;
  return response;
}

absl::Status CoordinatorLink::WatchJob(const std::string& job_id,
                                       const std::function<bool(const v1::JobStatus&)>& on_status,
                                       const CallOptions& options) {
  v1::WatchJobRequest request;
  request.set_job_id(job_id);
  absl::Time heard = absl::Now();
  for (;;) {
    grpc::ClientContext context;
    Cancellation::Scope scope(options.cancellation, &context);
    std::unique_ptr<grpc::ClientReader<v1::JobStatus>> reader = stub_->rpc->WatchJob(&context, request);
    bool refused = false;
    bool final = false;
    for (v1::JobStatus status; !refused && !final && reader->Read(&status);) {
      heard = absl::Now();
      final = IsFinal(status.state());
      refused = !on_status(status);
    }
    if (refused || final) context.TryCancel();
    const absl::Status status = CancelledIsUnavailable(FromGrpcStatus(reader->Finish()));
    if (final) return absl::OkStatus();
    if (refused || (options.cancellation != nullptr && options.cancellation->cancelled())) {
      return absl::CancelledError("WatchJob was given up");
    }
    if (status.ok()) return absl::InternalError(absl::StrCat(address_, ": the watch of ", job_id, " ended too early"));
    if (!IsRetryable(status) || absl::Now() - heard >= options.timeout) {
      return Explain("WatchJob", status, options.timeout);
    }
    Pause(options.cancellation, kRetryPause);
  }
}

}  // namespace sparrow
