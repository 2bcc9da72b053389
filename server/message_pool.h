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
#include "server/call_memory.h"

namespace sparrow {

// Thread-safe.
template <typename Message>
class MessagePool {
 public:
  // `memory` outlives this.
  MessagePool(CallMemory* memory, CallMemory::Kind kind) : memory_(*memory), kind_(kind) {}
  MessagePool(const MessagePool&) = delete;
  MessagePool& operator=(const MessagePool&) = delete;
  ~MessagePool() {
    for (const Kept& kept : kept_) memory_.Unkeep(kind_, kept.bytes);
  }

  // A message with whatever was in it before.
  std::unique_ptr<Message> Take() {
    absl::MutexLock lock(&mu_);
    if (kept_.empty()) return std::make_unique<Message>();
    std::unique_ptr<Message> message = std::move(kept_.back().message);
    memory_.Unkeep(kind_, kept_.back().bytes);
    kept_.pop_back();
    return message;
  }

  // Keeps the message unless too much is kept already.
  void Return(std::unique_ptr<Message> message) {
    const uint64_t bytes = message->SpaceUsedLong();
    if (!memory_.Keep(kind_, bytes)) return;
    absl::MutexLock lock(&mu_);
    kept_.push_back({std::move(message), bytes});
  }

 private:
  struct Kept {
    std::unique_ptr<Message> message;
    uint64_t bytes;
  };

  CallMemory& memory_;
  const CallMemory::Kind kind_;

  absl::Mutex mu_;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_MESSAGE_POOL_H_
