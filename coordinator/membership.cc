#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "coordinator/link.h"

namespace sparrow {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

absl::Duration Since(SteadyTime then) { return absl::FromChrono(std::chrono::steady_clock::now() - then); }

}  // namespace

struct Membership::State {
  State(CoordinatorLink* link, Options options) : link(link), options(std::move(options)) {}

  void SetRegistered(const v1::RegisterResponse& response) {
    absl::MutexLock lock(&mu);
    member_id = response.member_id();
    // A coordinator that says 0 must not make this a busy loop.
    interval = absl::Milliseconds(std::max<uint32_t>(10, response.heartbeat_ms()));
    lease = absl::Milliseconds(response.lease_ms());
  }

  // Registers or renews once. OK, or why not; `until` bounds the call.
  absl::Status Renew(absl::Duration timeout);
  void Run();
  // Waits for the interval, a nudge or the end; false at the end.
  bool WaitForNext();

  CoordinatorLink* const link;
  const Options options;

  Cancellation cancellation;
  mutable absl::Mutex mu;
  std::string member_id ABSL_GUARDED_BY(mu);  // Empty: the lease was lost and there is none yet.
  absl::Duration interval ABSL_GUARDED_BY(mu) = absl::Milliseconds(500);
  absl::Duration lease ABSL_GUARDED_BY(mu) = absl::ZeroDuration();
  bool nudged ABSL_GUARDED_BY(mu) = false;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool lost ABSL_GUARDED_BY(mu) = false;

  absl::Mutex stop_mu;  // Held throughout Stop, so that a second caller returns after the first has finished.
  std::thread thread ABSL_GUARDED_BY(stop_mu);
};

absl::Status Membership::State::Renew(absl::Duration timeout) {
  const CallOptions call{.timeout = timeout, .cancellation = &cancellation};
  v1::HeartbeatRequest request;
  {
    absl::MutexLock lock(&mu);
    request.set_member_id(member_id);
  }
  if (request.member_id().empty()) {
    absl::StatusOr<v1::RegisterResponse> registered = link->Register(options.registration, call);
    if (!registered.ok()) return registered.status();
    SetRegistered(*registered);
    request.set_member_id(registered->member_id());
    LOG(INFO) << "registered anew as " << registered->member_id();
  }
  if (options.before_heartbeat) options.before_heartbeat(&request);
  absl::StatusOr<v1::HeartbeatResponse> response = link->Heartbeat(request, call);
  if (absl::IsNotFound(response.status())) {
    LOG(WARNING) << request.member_id() << " lost its lease: " << response.status().message();
    absl::MutexLock lock(&mu);
    member_id.clear();
    nudged = true;  // Register at once.
    return absl::OkStatus();
  }
  if (!response.ok()) return response.status();
  if (options.on_heartbeat) options.on_heartbeat(*response);
  return absl::OkStatus();
}

bool Membership::State::WaitForNext() {
  const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return nudged || stopping; };
  absl::MutexLock lock(&mu);
  mu.AwaitWithTimeout(absl::Condition(&due), interval);
  nudged = false;
  return !stopping;
}

void Membership::State::Run() {
  SteadyTime heard = std::chrono::steady_clock::now();
  do {
    const absl::Duration left = options.give_up_after - Since(heard);
    const absl::Status status = Renew(std::clamp(left, absl::Milliseconds(100), absl::Duration(absl::Seconds(10))));
    if (status.ok()) {
      heard = std::chrono::steady_clock::now();
      continue;
    }
    // The coordinator refuses this member as it is: repeating cannot help.
    const bool refused = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
    const absl::Duration away = Since(heard);
    if (!refused && away < options.give_up_after) continue;
    {
      absl::MutexLock lock(&mu);
      if (stopping) return;
      lost = true;
    }
    const absl::Status reason =
        refused ? status
                : absl::UnavailableError(absl::StrCat("the coordinator has been away for ",
                                                      absl::FormatDuration(absl::Trunc(away, absl::Milliseconds(100))),
                                                      "; start it again, then this program: ", status.message()));
    LOG(ERROR) << reason.message();
    if (options.on_lost) options.on_lost(reason);
    return;
  } while (WaitForNext());
}

Membership::Membership(std::unique_ptr<State> state) : state_(std::move(state)) {}

Membership::~Membership() { Stop(""); }

absl::StatusOr<std::unique_ptr<Membership>> Membership::Start(CoordinatorLink* link, Options options) {
  absl::StatusOr<v1::RegisterResponse> registered = link->Register(options.registration);
  if (!registered.ok()) return registered.status();
  auto membership = std::unique_ptr<Membership>(new Membership(std::make_unique<State>(link, std::move(options))));
  State* const state = membership->state_.get();
  state->SetRegistered(*registered);
  absl::MutexLock lock(&state->stop_mu);
  state->thread = std::thread([state] { state->Run(); });
  return membership;
}

std::string Membership::member_id() const {
  absl::MutexLock lock(&state_->mu);
  return state_->member_id;
}

absl::Duration Membership::lease() const {
  absl::MutexLock lock(&state_->mu);
  return state_->lease;
}

void Membership::Nudge() {
  absl::MutexLock lock(&state_->mu);
  state_->nudged = true;
}

void Membership::Stop(const std::string& reason) {
  absl::MutexLock stop_lock(&state_->stop_mu);
  if (!state_->thread.joinable()) return;
  {
    absl::MutexLock lock(&state_->mu);
    state_->stopping = true;
  }
  state_->cancellation.Cancel();
  state_->thread.join();
  v1::LeaveRequest request;
  {
    absl::MutexLock lock(&state_->mu);
    if (state_->lost || state_->member_id.empty()) return;
    request.set_member_id(state_->member_id);
  }
  request.set_reason(reason);
  const absl::Status left = state_->link->Leave(request);
  if (!left.ok()) LOG(WARNING) << "leaving: " << left.message();
}

}  // namespace sparrow
