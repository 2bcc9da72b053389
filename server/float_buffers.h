#ifndef SPARROW_SERVER_FLOAT_BUFFERS_H_
#define SPARROW_SERVER_FLOAT_BUFFERS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/room.h"
#include "server/call_memory.h"

namespace sparrow {

// Buffers that are used again: fresh pages cost more than what is done with them. Thread-safe.
class FloatBuffers {
 public:
  // `memory`, in which those that are kept count, outlives this.
  explicit FloatBuffers(CallMemory* memory) : memory_(*memory) {}
  FloatBuffers(const FloatBuffers&) = delete;
  FloatBuffers& operator=(const FloatBuffers&) = delete;
  ~FloatBuffers() {
    for (const auto& buffer : free_) memory_.Unkeep(kKind, Bytes(*buffer));
  }

  // At least n floats, of any value.
  std::unique_ptr<std::vector<float>> Take(size_t n) {
    std::unique_ptr<std::vector<float>> buffer;
    {
      absl::MutexLock lock(&mu_);
      if (!free_.empty()) {
        buffer = std::move(free_.back());
        free_.pop_back();
        memory_.Unkeep(kKind, Bytes(*buffer));
      }
    }
    if (buffer == nullptr) buffer = std::make_unique<std::vector<float>>();
    Room(buffer.get(), n);
    return buffer;
  }
  void Return(std::unique_ptr<std::vector<float>> buffer) {
    if (!memory_.Keep(kKind, Bytes(*buffer))) return;
    absl::MutexLock lock(&mu_);
    free_.push_back(std::move(buffer));
  }

 private:
  static constexpr CallMemory::Kind kKind = CallMemory::Kind::kFloats;
  static uint64_t Bytes(const std::vector<float>& buffer) { return buffer.capacity() * sizeof(float); }

  CallMemory& memory_;

  absl::Mutex mu_;
  std::vector<std::unique_ptr<std::vector<float>>> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_FLOAT_BUFFERS_H_
