#ifndef SPARROW_BASE_CUDA_DEVICE_BUFFER_H_
#define SPARROW_BASE_CUDA_DEVICE_BUFFER_H_

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/cuda/stream.h"

namespace sparrow {

namespace internal {
// Left free by what we allocate, for what CUDA allocates by itself: a kernel that finds no room when it is first
// started ends the process (base/cuda/launch.cuh).
constexpr size_t kGpuSpareBytes = size_t{64} << 20;
void* DeviceAllocate(size_t bytes, size_t spare = kGpuSpareBytes);  // nullptr: out of memory, but for the spare bytes.
void DeviceFree(void* memory);
void CopyToDevice(void* device, const void* host, size_t bytes, const Stream& stream);
void CopyToHost(void* host, const void* device, size_t bytes, const Stream& stream);
void CopyOnDevice(void* to, const void* from, size_t bytes, const Stream& stream);
void FillDevice(void* device, int byte, size_t bytes, const Stream& stream);
}  // namespace internal

// An array in GPU memory, owned. T is trivially copyable.
template <typename T>
class DeviceBuffer {
 public:
  // nullopt: the GPU has not that much memory free, beside kGpuSpareBytes; the caller turns that into
  // ResourceExhausted. The contents are undefined.
  static std::optional<DeviceBuffer> Allocate(size_t size) {
    void* memory = size == 0 ? nullptr : internal::DeviceAllocate(size * sizeof(T));
    if (size != 0 && memory == nullptr) return std::nullopt;
    return DeviceBuffer(static_cast<T*>(memory), size);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) internal::DeviceFree(data_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }

  // Queued on `stream`; the host memory must stay until the stream has passed. REQUIRES: host.size() == size().
  void CopyFrom(std::span<const T> host, const Stream& stream) {
    CHECK_EQ(host.size(), size_);
    internal::CopyToDevice(data_, host.data(), host.size_bytes(), stream);
  }
  void CopyTo(std::span<T> host, const Stream& stream) const {
    CHECK_EQ(host.size(), size_);
    internal::CopyToHost(host.data(), data_, host.size_bytes(), stream);
  }
  // Sets every byte.
  void Fill(int byte, const Stream& stream) { internal::FillDevice(data_, byte, size_ * sizeof(T), stream); }

 private:
  DeviceBuffer(T* data, size_t size) : data_(data), size_(size) {}

  T* data_;
  size_t size_;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_DEVICE_BUFFER_H_
