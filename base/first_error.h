#ifndef SPARROW_BASE_FIRST_ERROR_H_
#define SPARROW_BASE_FIRST_ERROR_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace sparrow {

// The first error of several threads. Thread-safe.
class FirstError {
 public:
  void Update(const absl::Status& status) {
    if (status.ok()) return;
    absl::MutexLock lock(&mu_);
    status_.Update(status);
  }
  absl::Status status() const {
    absl::MutexLock lock(&mu_);
    return status_;
  }

 private:
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_BASE_FIRST_ERROR_H_
