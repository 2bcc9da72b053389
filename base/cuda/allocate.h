#ifndef SPARROW_BASE_CUDA_ALLOCATE_H_
#define SPARROW_BASE_CUDA_ALLOCATE_H_

// Memory with an error that a person can act on. Not for kernel targets, which have no abseil.

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/pinned_buffer.h"
#include "base/process.h"

namespace sparrow {

// ResourceExhausted: `what`, which says what needs how much ("logits need 4096 bytes"), and the bytes free of the
// current GPU.
inline absl::Status GpuIsOutOfMemory(absl::string_view what) {
  const GpuMemory memory = GpuMemoryNow();
  return absl::ResourceExhaustedError(
      absl::StrCat("the GPU is out of memory: ", what, ", ", memory.free, " of ", memory.total, " are free"));
}

// ResourceExhausted names `what`, the bytes asked for and those free.
template <typename T>
absl::StatusOr<DeviceBuffer<T>> AllocateOnDevice(size_t size, absl::string_view what) {
  std::optional<DeviceBuffer<T>> buffer = DeviceBuffer<T>::Allocate(size);
  if (buffer.has_value()) return std::move(*buffer);
  return GpuIsOutOfMemory(absl::StrCat(what, " needs ", size * sizeof(T), " bytes"));
}

// The same, of the system's memory.
template <typename T>
absl::StatusOr<PinnedBuffer<T>> AllocatePinned(size_t size, absl::string_view what) {
  std::optional<PinnedBuffer<T>> buffer = PinnedBuffer<T>::Allocate(size);
  if (buffer.has_value()) return std::move(*buffer);
  return absl::ResourceExhaustedError(absl::StrCat("the system has no memory to pin: ", what, " needs ",
                                                   size * sizeof(T), " bytes, ", AvailableMemoryBytes(),
                                                   " are available (and some systems limit what a process may pin)"));
}

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_ALLOCATE_H_
