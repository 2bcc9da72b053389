#ifndef SPARROW_TESTS_SERVER_CALL_END_H_
#define SPARROW_TESTS_SERVER_CALL_END_H_

#include <grpcpp/support/status.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/rpc.h"

namespace sparrow {

// How an asynchronous call ended. Made before the call starts: its lock then also orders what was written before the
// start before what the callback does, as gRPC does by means that ThreadSanitizer does not see.
class CallEnd {
 public:
  CallEnd() { absl::MutexLock lock(&mu_); }

  void Set(const grpc::Status& status) {
    absl::MutexLock lock(&mu_);
    status_ = FromGrpcStatus(status);
    done_ = true;
  }
  absl::Status Wait() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&done_));
    return status_;
  }

 private:
  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SERVER_CALL_END_H_
