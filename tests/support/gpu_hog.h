#ifndef SPARROW_TESTS_SUPPORT_GPU_HOG_H_
#define SPARROW_TESTS_SUPPORT_GPU_HOG_H_

#include <cstddef>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"

namespace sparrow {

// Holds all of the current GPU's memory but so many bytes, as another program may.
class GpuHog {
 public:
  explicit GpuHog(size_t leave_bytes) {
    constexpr size_t kPieceMin = size_t{2} << 20;
    for (size_t piece = size_t{1} << 34; piece >= kPieceMin; piece /= 2) {
      while (GpuMemoryNow().free >= leave_bytes + piece) {
        void* const held = internal::DeviceAllocate(piece, /*spare=*/0);
        if (held == nullptr) break;
        held_.push_back(held);
      }
    }
  }
  ~GpuHog() {
    for (void* const held : held_) internal::DeviceFree(held);
  }
  GpuHog(const GpuHog&) = delete;
  GpuHog& operator=(const GpuHog&) = delete;

 private:
  std::vector<void*> held_;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_GPU_HOG_H_
