#ifndef SPARROW_BASE_CUDA_MIRROR_H_
#define SPARROW_BASE_CUDA_MIRROR_H_

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "base/cuda/allocate.h"
#include "base/status_macros.h"

namespace sparrow {

// An array in pinned host memory, and the same array on the GPU. Not for kernel targets, which have no abseil.
template <typename T>
struct Mirror {
  PinnedBuffer<T> host;
  DeviceBuffer<T> device;

  // Of no elements.
  static Mirror Empty() { return {.host = *PinnedBuffer<T>::Allocate(0), .device = *DeviceBuffer<T>::Allocate(0)}; }
  // ResourceExhausted names `what`.
  static absl::StatusOr<Mirror> Make(size_t size, absl::string_view what) {
    ASSIGN_OR_RETURN(PinnedBuffer<T> host, AllocatePinned<T>(size, what));
    ASSIGN_OR_RETURN(DeviceBuffer<T> device, AllocateOnDevice<T>(size, what));
    return Mirror{.host = std::move(host), .device = std::move(device)};
  }

  // Queue a copy of the first n elements; the host's stay as they are until the stream has passed.
  void Upload(size_t n, const Stream& stream) {
    internal::CopyToDevice(device.data(), host.data(), n * sizeof(T), stream);
  }
  void Fetch(size_t n, const Stream& stream) {
    internal::CopyToHost(host.data(), device.data(), n * sizeof(T), stream);
  }
};

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_MIRROR_H_
