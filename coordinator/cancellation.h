#ifndef SPARROW_COORDINATOR_CANCELLATION_H_
#define SPARROW_COORDINATOR_CANCELLATION_H_

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace grpc {
class ClientContext;
}

namespace sparrow {

// Ends the calls that were given it, from another thread: a member that stops need not wait for an answer. Thread-safe.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Calls under way and later ones end with Cancelled. For ever.
  void Cancel();
  bool cancelled() const;
  // Waits for `time` or until cancelled; returns cancelled().
  bool WaitFor(absl::Duration time);

  // Holds a call's context where Cancel finds it.
  class Scope {
   public:
    Scope(Cancellation* cancellation /*may be null*/, grpc::ClientContext* context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Cancellation* const cancellation_;
    grpc::ClientContext* const context_;
  };

 private:
  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_CANCELLATION_H_
