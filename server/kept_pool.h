#ifndef SPARROW_SERVER_KEPT_POOL_H_
#define SPARROW_SERVER_KEPT_POOL_H_

// Messages and buffers that are used again and keep their memory: fresh pages cost more than what is done with them.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/call_memory.h"

namespace sparrow {

// What a message, a vector, or a struct that tells it holds.
template <typename T>
uint64_t BytesHeld(const T& object) {
  if constexpr (requires { object.SpaceUsedLong(); }) {
    return object.SpaceUsedLong();
  } else if constexpr (requires { object.capacity(); }) {
    return object.capacity() * sizeof(object[0]);
  } else {
    return object.bytes();
  }
}

// Thread-safe.
template <typename T>
class KeptPool {
 public:
  // Those that nobody uses count in `memory`, which outlives this, as of `kind`.
  KeptPool(CallMemory* memory, CallMemory::Kind kind) : memory_(*memory), kind_(kind) {}
  KeptPool(const KeptPool&) = delete;
  KeptPool& operator=(const KeptPool&) = delete;
  ~KeptPool() {
    for (const Kept& kept : kept_) memory_.Unkeep(kind_, kept.bytes);
  }

  // One with whatever was in it before.
  std::unique_ptr<T> Take() {
    absl::MutexLock lock(&mu_);
    if (kept_.empty()) return std::make_unique<T>();
    std::unique_ptr<T> object = std::move(kept_.back().object);
    memory_.Unkeep(kind_, kept_.back().bytes);
    kept_.pop_back();
    return object;
  }

  // Keeps it unless too much is kept already.
  void Return(std::unique_ptr<T> object) {
    const uint64_t bytes = BytesHeld(*object);
    if (!memory_.Keep(kind_, bytes)) return;
    absl::MutexLock lock(&mu_);
    kept_.push_back({std::move(object), bytes});
  }

 private:
  struct Kept {
    std::unique_ptr<T> object;
    uint64_t bytes;
  };

  CallMemory& memory_;
  const CallMemory::Kind kind_;

  absl::Mutex mu_;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_KEPT_POOL_H_
