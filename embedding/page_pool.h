#ifndef SPARROW_EMBEDDING_PAGE_POOL_H_
#define SPARROW_EMBEDDING_PAGE_POOL_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "embedding/pages.h"

namespace sparrow {

// Zeroed memory for arrays that double, such as the indexes of a table's stripes: together they are large, each may be
// smaller than a huge page. Blocks of 64 KiB to 1 MiB are cut from shared huge pages (buddies: halves of halves), which
// go back to the machine once they are wholly free; smaller and larger ones are Pages of their own. Thread-safe.
class PagePool {
 public:
  // Memory of a pool, given back when it ends. Movable; not thread-safe; ends before its pool.
  class Block {
   public:
    Block() = default;
    ~Block();
    Block(Block&& other) noexcept { Swap(&other); }
    Block& operator=(Block&& other) noexcept {
      Swap(&other);
      return *this;
    }

    char* data() const { return data_; }  // Null if there was no memory. Aligned to 64 bytes.
    uint64_t bytes() const { return bytes_; }

   private:
    friend class PagePool;
    void Swap(Block* other);

    char* data_ = nullptr;
    uint64_t bytes_ = 0;
    Pages own_;                 // What data_ points into, if not the pool's.
    PagePool* pool_ = nullptr;  // Whose it is, else.
  };

  PagePool() = default;
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // REQUIRES: bytes is a power of two, at least 64.
  Block Take(uint64_t bytes);

  // Of the shared huge pages.
  uint64_t SharedBytes() const;

 private:
  static constexpr int kClasses = 6;  // 64 KiB * 2^c; the last is a whole huge page.
  static constexpr uint64_t kSmallest = 64 << 10;
  static_assert(kSmallest << (kClasses - 1) == Pages::kHugeBytes);

  void GiveBack(char* data, uint64_t bytes);
  char* TakeOfClass(int c) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::vector<Pages> huge_ ABSL_GUARDED_BY(mu_);
  std::array<std::vector<char*>, kClasses> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_PAGE_POOL_H_
