#ifndef SPARROW_WORKER_CALL_SET_H_
#define SPARROW_WORKER_CALL_SET_H_

// Calls of one kind to several servers, in flight together, each repeated while its server is Unavailable.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/rpc.h"
#include "base/status_macros.h"
#include "worker/ps_transport.h"

namespace sparrow {

// One parameter server as a worker sees it.
struct PsServer {
  std::string address;  // For messages.
  std::unique_ptr<PsTransport> transport;
};

struct RetryPolicy {
  absl::Duration timeout;      // Of a call with all its repeats.
  absl::Duration unavailable;  // A server that is Unavailable for this long is given up.
};

// Messages are kept from use to use, so their memory is. One thread uses a set; the calls' ends come on any thread.
template <typename Request, typename Response>
class CallSet {
 public:
  using Method = void (PsTransport::*)(const Request*, Response*, absl::Duration, PsTransport::Done);

  // `what` names the call in errors ("pull"). The servers outlive the set.
  CallSet(std::vector<PsServer>* servers, Method method, std::string what)
      : servers_(servers), method_(method), what_(std::move(what)) {}

  // A call that is still in flight makes the servers' transports unusable: they are cancelled and waited for.
  ~CallSet() {
    if (InFlight()) CancelAll();
    WaitForNone();
  }

  // Sets how many calls there are; their messages keep what they held. REQUIRES: none in flight.
  void Resize(size_t calls) {
    CHECK(!InFlight());
    while (calls_.size() < calls) calls_.push_back(std::make_unique<Call>());
    used_ = calls;
  }
  size_t size() const { return used_; }
  Request* request(size_t call) { return &calls_[call]->request; }
  const Request& request(size_t call) const { return calls_[call]->request; }
  const Response& response(size_t call) const { return calls_[call]->response; }
  uint32_t server(size_t call) const { return calls_[call]->server; }
  // Whether a call that was sent has its answer, so that response(call) may be read before Await.
  bool Answered(size_t call) const {
    absl::MutexLock lock(&mu_);
    return calls_[call]->answered;
  }

  // Whether all that were sent have theirs.
  bool AllAnswered() const {
    absl::MutexLock lock(&mu_);
    return unfinished_ == 0 && failed_ == nullptr;
  }

  // Sends all of them; server_of(call) is the server of each. Every Start is followed by an Await (or the destructor).
  template <typename ServerOf>
  void Start(const RetryPolicy& policy, const ServerOf& server_of) {
    policy_ = policy;
    started_ = absl::Now();
    {
      absl::MutexLock lock(&mu_);
      CHECK_EQ(unfinished_, 0u);
      unfinished_ = used_;
      failed_ = nullptr;
      for (size_t c = 0; c < used_; ++c) calls_[c]->answered = false;
    }
    for (size_t c = 0; c < used_; ++c) {
      calls_[c]->server = server_of(c);
      calls_[c]->unavailable_since = absl::InfiniteFuture();
      calls_[c]->repeat_at = absl::InfiniteFuture();
      Send(calls_[c].get());
    }
  }

  // Waits for all of them. The error names call, server and address; the servers' transports are cancelled then, since
  // a job whose call failed is over.
  absl::Status Await() {
    for (;;) {
      std::vector<Call*> due;
      {
        absl::MutexLock lock(&mu_);
        if (unfinished_ == 0 || failed_ != nullptr) break;
        const absl::Time now = absl::Now();
        absl::Time next_repeat = absl::InfiniteFuture();
        for (size_t c = 0; c < used_; ++c) {
          Call* call = calls_[c].get();
          if (call->repeat_at <= now) {
            call->repeat_at = absl::InfiniteFuture();
            due.push_back(call);
          } else {
            next_repeat = std::min(next_repeat, call->repeat_at);
          }
        }
        if (due.empty()) {
          changed_ = false;
          mu_.AwaitWithDeadline(absl::Condition(&changed_), next_repeat);
        }
      }
      for (Call* call : due) Send(call);
    }
    Call* failed;
    {
      absl::MutexLock lock(&mu_);
      failed = failed_;
    }
    if (failed == nullptr) return absl::OkStatus();
    const absl::Status status = Annotate(
        failed->status,
        absl::StrCat("parameter server ", failed->server, " at ", (*servers_)[failed->server].address, ": ", what_));
    CancelAll();
    WaitForNone();
    return status;
  }

 private:
  struct Call {
    Request request;
    Response response;
    uint32_t server = 0;
    absl::Status status;
    bool answered = false;
    absl::Time unavailable_since;
    absl::Time repeat_at;  // When it is to be sent again; infinite: it is in flight, or over.
  };
  static constexpr absl::Duration kPause = absl::Milliseconds(100);  // Before a repeat.

  bool InFlight() {
    absl::MutexLock lock(&mu_);
    return unfinished_ > 0;
  }
  void Send(Call* call) {
    call->response.Clear();
    const absl::Duration left = started_ + policy_.timeout - absl::Now();
    PsTransport* transport = (*servers_)[call->server].transport.get();
    (transport->*method_)(&call->request, &call->response, left,
                          [this, call](absl::Status status) { Ended(call, std::move(status)); });
  }

  void Ended(Call* call, absl::Status status) {
    absl::MutexLock lock(&mu_);
    changed_ = true;
    if (status.ok()) {
      call->answered = true;
      --unfinished_;
      return;
    }
    const absl::Time now = absl::Now();
    if (IsRetryable(status) && !abandoned_) {
      call->unavailable_since = std::min(call->unavailable_since, now);
      const absl::Time repeat_at = now + kPause;
      if (repeat_at < call->unavailable_since + policy_.unavailable && repeat_at < started_ + policy_.timeout) {
        call->repeat_at = repeat_at;
        return;
      }
    }
    call->status = std::move(status);
    --unfinished_;
    if (failed_ == nullptr) failed_ = call;
  }

  void CancelAll() {
    {
      absl::MutexLock lock(&mu_);
      abandoned_ = true;
      // Those that wait for their repeat are in nobody's hands.
      for (size_t c = 0; c < used_; ++c) {
        if (calls_[c]->repeat_at == absl::InfiniteFuture()) continue;
        calls_[c]->repeat_at = absl::InfiniteFuture();
        --unfinished_;
      }
    }
    for (PsServer& server : *servers_) server.transport->Cancel();
  }

  void WaitForNone() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](size_t* unfinished) { return *unfinished == 0; }, &unfinished_));
  }

  std::vector<PsServer>* const servers_;
  const Method method_;
  const std::string what_;

  // Of the thread that uses the set. A call's status, answered and repeat_at are guarded by mu_ while it is in flight.
  std::vector<std::unique_ptr<Call>> calls_;
  size_t used_ = 0;
  RetryPolicy policy_;
  absl::Time started_;

  mutable absl::Mutex mu_;
  size_t unfinished_ ABSL_GUARDED_BY(mu_) = 0;
  Call* failed_ ABSL_GUARDED_BY(mu_) = nullptr;  // The first.
  bool changed_ ABSL_GUARDED_BY(mu_) = false;    // A call has ended or waits for its repeat since Await looked.
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_CALL_SET_H_
