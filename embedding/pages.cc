#include "embedding/pages.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace sparrow {
namespace {

constexpr uint64_t kCacheLine = 64;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Maps more than is asked for and cuts both ends off, since mmap aligns to 4 KiB only.
char* MapHuge(uint64_t bytes) {
  const uint64_t mapped_bytes = bytes + Pages::kHugeBytes;
  void* mapped =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  const uint64_t skip =
      RoundUp(reinterpret_cast<uintptr_t>(begin), Pages::kHugeBytes) - reinterpret_cast<uintptr_t>(begin);
  if (skip > 0) munmap(begin, skip);
  const uint64_t rest = mapped_bytes - skip - bytes;
  if (rest > 0) munmap(begin + skip + bytes, rest);
  madvise(begin + skip, bytes, MADV_HUGEPAGE);  // A wish: where the kernel has none, 4 KiB pages do.
  return begin + skip;
}

}  // namespace

Pages::Pages(uint64_t bytes) : bytes_(RoundUp(bytes, bytes >= kHugeBytes ? kHugeBytes : kCacheLine)) {
  if (bytes_ == 0) return;
  if (mapped()) {
    data_ = MapHuge(bytes_);
  } else {
    data_ = static_cast<char*>(std::aligned_alloc(kCacheLine, bytes_));
    if (data_ != nullptr) std::memset(data_, 0, bytes_);
  }
  if (data_ == nullptr) bytes_ = 0;
}

Pages::~Pages() {
  if (data_ == nullptr) return;
  if (mapped()) {
    munmap(data_, bytes_);
  } else {
    std::free(data_);
  }
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Pages::ReleaseFrom(uint64_t offset) {
  if (!mapped() || offset >= bytes_) return;
  const uint64_t first = RoundUp(offset, kHugeBytes);
  if (first < bytes_) madvise(data_ + first, bytes_ - first, MADV_DONTNEED);
}

}  // namespace sparrow
