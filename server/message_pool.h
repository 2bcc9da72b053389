#ifndef SPARROW_SERVER_MESSAGE_POOL_H_
#define SPARROW_SERVER_MESSAGE_POOL_H_

// Protobuf messages that are used again and keep the memory of their strings: fresh pages cost more than the copy that
// fills them.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace sparrow {

// Thread-safe.
template <typename Message>
class MessagePool {
 public:
  explicit MessagePool(uint64_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}

  // A message with whatever was in it before.
  std::unique_ptr<Message> Take() {
    absl::MutexLock lock(&mu_);
    if (kept_.empty()) return std::make_unique<Message>();
    std::unique_ptr<Message> message = std::move(kept_.back().message);
    kept_bytes_ -= kept_.back().bytes;
    kept_.pop_back();
    return message;
  }

  // Keeps the message unless too much is kept already.
  void Return(std::unique_ptr<Message> message) {
    const uint64_t bytes = message->SpaceUsedLong();
    absl::MutexLock lock(&mu_);
    if (kept_bytes_ + bytes > kept_bytes_max_) return;
    kept_bytes_ += bytes;
    kept_.push_back({std::move(message), bytes});
  }

 private:
  struct Kept {
    std::unique_ptr<Message> message;
    uint64_t bytes;
  };

  const uint64_t kept_bytes_max_;

  absl::Mutex mu_;
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_MESSAGE_POOL_H_
