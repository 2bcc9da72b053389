#ifndef SPARROW_TESTS_SUPPORT_GPU_HOG_H_
#define SPARROW_TESTS_SUPPORT_GPU_HOG_H_

#include <cstddef>
#include <optional>
#include <utility>
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
        std::optional<DeviceBuffer<char>> held = DeviceBuffer<char>::Allocate(piece);
        if (!held.has_value()) break;
        held_.push_back(std::move(*held));
      }
    }
  }

 private:
  std::vector<DeviceBuffer<char>> held_;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_GPU_HOG_H_
