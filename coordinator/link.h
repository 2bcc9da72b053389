#ifndef SPARROW_COORDINATOR_LINK_H_
#define SPARROW_COORDINATOR_LINK_H_

// The member's end of the control plane, used by servers, workers and clients: typed calls with deadlines and retries,
// and a thread that keeps a membership alive.

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/cancellation.h"
#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

// Of one call.
struct CallOptions {
  absl::Duration timeout = absl::Seconds(10);
  Cancellation* cancellation = nullptr;  // May be null. Its Cancel() ends the call at once, with Cancelled.
};

// Thread-safe. Each call has a deadline (10 s if not said otherwise) and is repeated while the coordinator is
// Unavailable and the deadline allows; all of them may be repeated safely. Errors name the coordinator's address.
class CoordinatorLink {
 public:
  // `address` is for messages.
  CoordinatorLink(std::shared_ptr<grpc::Channel> channel, std::string address);
  ~CoordinatorLink();

  // Connects; Unavailable after `timeout`.
  static absl::StatusOr<std::unique_ptr<CoordinatorLink>> Connect(const std::string& address, absl::Duration timeout);

  // An empty version is filled with this program's.
  absl::StatusOr<v1::RegisterResponse> Register(const v1::RegisterRequest& request, const CallOptions& options = {});
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request, const CallOptions& options = {});
  absl::Status Leave(const v1::LeaveRequest& request);  // One try, 2 s.
  absl::StatusOr<v1::ReportResponse> Report(const v1::ReportRequest& request, const CallOptions& options = {});
  absl::Status PutRendezvous(const v1::PutRendezvousRequest& request, const CallOptions& options = {});
  // The deadline is the request's timeout_ms plus options.timeout.
  absl::StatusOr<v1::GetRendezvousResponse> GetRendezvous(const v1::GetRendezvousRequest& request,
                                                          const CallOptions& options = {});
  absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitRequest& request, const CallOptions& options = {});
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const CallOptions& options = {});
  absl::StatusOr<v1::GetJobResponse> GetJob(const std::string& job_id, const CallOptions& options = {});
  absl::Status CancelJob(const std::string& job_id, const CallOptions& options = {});
  absl::StatusOr<v1::GetClusterResponse> GetCluster(const CallOptions& options = {});
  // Calls on_status for each status until a final one has been given (OK), on_status returns false (Cancelled), or the
  // coordinator has not been reached for options.timeout (Unavailable). A watch has no deadline.
  absl::Status WatchJob(const std::string& job_id, const std::function<bool(const v1::JobStatus&)>& on_status,
                        const CallOptions& options = {});

  const std::string& address() const { return address_; }

 private:
  struct Stub;

  // One call by `method` with retries; `name` is for messages.
  template <typename Request, typename Response, typename Method>
  absl::Status Call(const char* name, Method method, const Request& request, const CallOptions& options,
                    Response* response);
  absl::Status Explain(const char* name, const absl::Status& status, absl::Duration timeout) const;

  const std::string address_;
  const std::unique_ptr<Stub> stub_;
};

// Registers, then sends heartbeats on a thread of its own. A lost lease (NOT_FOUND) or a restarted coordinator is
// answered by registering anew, which gives a new member_id(). Thread-safe.
class Membership {
 public:
  struct Options {
    v1::RegisterRequest registration;
    // Fills what the next heartbeat carries besides the id; may be empty.
    std::function<void(v1::HeartbeatRequest*)> before_heartbeat;
    // Called with every answer, on the membership's thread; must neither block nor call Stop. May be empty.
    std::function<void(const v1::HeartbeatResponse&)> on_heartbeat;
    // The coordinator has been away for this long, or refuses this member: on_lost is called with the reason, once, and
    // the thread ends. Must not call Stop. May be empty.
    absl::Duration give_up_after = absl::Seconds(60);
    std::function<void(absl::Status)> on_lost;
  };

  // Registers (an error is returned) and starts. `link` outlives the membership.
  static absl::StatusOr<std::unique_ptr<Membership>> Start(CoordinatorLink* link, Options options);
  ~Membership();  // Stop("").

  std::string member_id() const;
  // How long the coordinator waits for a silent member before it gives it up.
  absl::Duration lease() const;
  // Sends a heartbeat now instead of at the next interval.
  void Nudge();
  // Ends a call that is under way, leaves the coordinator (unless it is lost) and joins the thread. Idempotent.
  void Stop(const std::string& reason);

 private:
  struct State;
  explicit Membership(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

// The address of this machine by which it reaches `address` (HOST:PORT), from the routing table; sends nothing.
// "127.0.0.1" for loopback and for unix:PATH; an IPv6 address comes in brackets.
absl::StatusOr<std::string> LocalHostTowards(const std::string& address);

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_LINK_H_
