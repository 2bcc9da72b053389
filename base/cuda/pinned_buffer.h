#ifndef SPARROW_BASE_CUDA_PINNED_BUFFER_H_
#define SPARROW_BASE_CUDA_PINNED_BUFFER_H_

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

namespace sparrow {

namespace internal {
void* PinnedAllocate(size_t bytes);  // nullptr: out of memory.
void PinnedFree(void* memory);
}  // namespace internal

// An array in host memory that the GPU copies from and to by itself, at the link's full rate and while the host goes
// on. Owned. T is trivially copyable.
template <typename T>
class PinnedBuffer {
 public:
  // nullopt: the system has not that much memory to pin. The contents are undefined.
  static std::optional<PinnedBuffer> Allocate(size_t size) {
    void* memory = size == 0 ? nullptr : internal::PinnedAllocate(size * sizeof(T));
    if (size != 0 && memory == nullptr) return std::nullopt;
    return PinnedBuffer(static_cast<T*>(memory), size);
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PinnedBuffer() {
    if (data_ != nullptr) internal::PinnedFree(data_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<T> all() { return {data_, size_}; }
  std::span<const T> all() const { return {data_, size_}; }

 private:
  PinnedBuffer(T* data, size_t size) : data_(data), size_(size) {}

  T* data_;
  size_t size_;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_PINNED_BUFFER_H_
