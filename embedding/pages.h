#ifndef SPARROW_EMBEDDING_PAGES_H_
#define SPARROW_EMBEDDING_PAGES_H_

#include <cstdint>

namespace sparrow {

// Zeroed memory of a fixed size, on huge pages (2 MiB) where it is that large: a random access to 4 KiB pages costs a
// walk of the page table besides the row itself, which is most of the time of a large table. Pages that were never
// touched take no memory. Movable; not thread-safe.
class Pages {
 public:
  static constexpr uint64_t kHugeBytes = 2 << 20;

  Pages() = default;
  // data() is null if the machine has no such memory.
  explicit Pages(uint64_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  char* data() const { return data_; }  // Aligned to 64 bytes; to 2 MiB if bytes() >= kHugeBytes.
  uint64_t bytes() const { return bytes_; }

  // Gives the memory of [offset, bytes()) back to the machine, as far as whole pages lie in it. What is read there
  // afterwards is unspecified.
  void ReleaseFrom(uint64_t offset);

 private:
  bool mapped() const { return bytes_ >= kHugeBytes; }

  char* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_PAGES_H_
