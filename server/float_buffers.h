#ifndef SPARROW_SERVER_FLOAT_BUFFERS_H_
#define SPARROW_SERVER_FLOAT_BUFFERS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/room.h"

namespace sparrow {

// Buffers that are used again: fresh pages cost more than what is done with them. As many are kept as were in use at
// once. Thread-safe.
class FloatBuffers {
 public:
  // At least n floats, of any value.
  std::unique_ptr<std::vector<float>> Take(size_t n) {
    std::unique_ptr<std::vector<float>> buffer;
    {
      absl::MutexLock lock(&mu_);
      if (!free_.empty()) {
        buffer = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (buffer == nullptr) buffer = std::make_unique<std::vector<float>>();
    Room(buffer.get(), n);
    return buffer;
  }
  void Return(std::unique_ptr<std::vector<float>> buffer) {
    absl::MutexLock lock(&mu_);
    free_.push_back(std::move(buffer));
  }

 private:
  absl::Mutex mu_;
  std::vector<std::unique_ptr<std::vector<float>>> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_FLOAT_BUFFERS_H_
