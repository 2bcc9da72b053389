#include "coordinator/cancellation.h"

#include <grpcpp/client_context.h>

#include <algorithm>

namespace sparrow {

void Cancellation::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  for (grpc::ClientContext* call : calls_) call->TryCancel();
}

bool Cancellation::cancelled() const {
  absl::MutexLock lock(&mu_);
  return cancelled_;
}

bool Cancellation::WaitFor(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&cancelled_), time);
  return cancelled_;
}

Cancellation::Scope::Scope(Cancellation* cancellation, grpc::ClientContext* context)
    : cancellation_(cancellation), context_(context) {
  if (cancellation_ == nullptr) return;
  absl::MutexLock lock(&cancellation_->mu_);
  cancellation_->calls_.push_back(context_);
  // TryCancel before the call has begun ends it as soon as it begins.
  if (cancellation_->cancelled_) context_->TryCancel();
}

Cancellation::Scope::~Scope() {
  if (cancellation_ == nullptr) return;
  absl::MutexLock lock(&cancellation_->mu_);
  std::erase(cancellation_->calls_, context_);
}

}  // namespace sparrow
