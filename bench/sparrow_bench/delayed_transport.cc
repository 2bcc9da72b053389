#include "bench/sparrow_bench/delayed_transport.h"

#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/support/forwarding_transport.h"

namespace sparrow::bench {
namespace {

class DelayedTransport final : public ForwardingTransport {
 public:
  DelayedTransport(std::unique_ptr<PsTransport> inner, absl::Duration delay)
      : ForwardingTransport(std::move(inner)), delay_(delay), thread_([this] { HandOver(); }) {}

  ~DelayedTransport() override {
    Cancel();
    thread_.join();  // Those that it has handed over end with `inner`, after this.
  }

  void Pull(const RowPull* request, v1::PullResponse* response, absl::Duration timeout, Done done) override {
    {
      absl::MutexLock lock(&mu_);
      if (!cancelled_) {
        waiting_.push_back({absl::Now() + delay_, request, response, timeout, std::move(done)});
        return;
      }
    }
    done(absl::CancelledError("the call was cancelled"));
  }
  void Cancel() override {
    std::deque<WaitingPull> ended;
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
      ended.swap(waiting_);
    }
    for (WaitingPull& pull : ended) pull.done(absl::CancelledError("the call was cancelled"));
    ForwardingTransport::Cancel();
  }

 private:
  struct WaitingPull {
    absl::Time due;
    const RowPull* request;
    v1::PullResponse* response;
    absl::Duration timeout;
    Done done;
  };

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return cancelled_ || !waiting_.empty(); }

  void HandOver() {
    for (;;) {
      WaitingPull pull;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &DelayedTransport::HasWork));
        // All wait equally long, so the first to come is the first to go.
        const absl::Time due = cancelled_ ? absl::InfinitePast() : waiting_.front().due;
        if (mu_.AwaitWithDeadline(absl::Condition(&cancelled_), due)) return;
        pull = std::move(waiting_.front());
        waiting_.pop_front();
      }
      ForwardingTransport::Pull(pull.request, pull.response, pull.timeout, std::move(pull.done));
    }
  }

  const absl::Duration delay_;

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<WaitingPull> waiting_ ABSL_GUARDED_BY(mu_);  // In the order in which they were asked for.

  std::thread thread_;  // Last, since it uses the others.
};

}  // namespace

std::unique_ptr<PsTransport> MakeDelayedTransport(std::unique_ptr<PsTransport> inner, absl::Duration delay) {
  return std::make_unique<DelayedTransport>(std::move(inner), delay);
}

}  // namespace sparrow::bench
