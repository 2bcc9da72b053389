#include "embedding/page_pool.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace sparrow {

PagePool::Block::~Block() {
  if (pool_ != nullptr) pool_->GiveBack(data_, bytes_);
}

void PagePool::Block::Swap(Block* other) {
  std::swap(data_, other->data_);
  std::swap(bytes_, other->bytes_);
  std::swap(own_, other->own_);
  std::swap(pool_, other->pool_);
}

PagePool::Block PagePool::Take(uint64_t bytes) {
  CHECK(std::has_single_bit(bytes) && bytes >= 64) << bytes;
  Block block;
  if (bytes < kSmallest || bytes >= Pages::kHugeBytes) {
    block.own_ = Pages(bytes);
    block.data_ = block.own_.data();
  } else {
    absl::MutexLock lock(&mu_);
    block.data_ = TakeOfClass(std::bit_width(bytes / kSmallest) - 1);
    if (block.data_ != nullptr) {
      block.pool_ = this;
      std::memset(block.data_, 0, bytes);
    }
  }
  if (block.data_ != nullptr) block.bytes_ = bytes;
  return block;
}

char* PagePool::TakeOfClass(int c) {
  if (!free_[c].empty()) {
    char* const data = free_[c].back();
    free_[c].pop_back();
    return data;
  }
  if (c == kClasses - 1) {
    Pages huge(Pages::kHugeBytes);
    if (huge.data() == nullptr) return nullptr;
    huge_.push_back(std::move(huge));
    return huge_.back().data();
  }
  char* const whole = TakeOfClass(c + 1);
  if (whole != nullptr) free_[c].push_back(whole + (kSmallest << c));
  return whole;
}

void PagePool::GiveBack(char* data, uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  int c = std::bit_width(bytes / kSmallest) - 1;
  for (; c < kClasses - 1; ++c) {
    // Huge pages are aligned to their size, so the other half differs in one bit.
    char* const buddy = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(data) ^ (kSmallest << c));
    const auto it = std::find(free_[c].begin(), free_[c].end(), buddy);
    if (it == free_[c].end()) break;
    free_[c].erase(it);
    data = std::min(data, buddy);
  }
  if (c < kClasses - 1) {
    free_[c].push_back(data);
  } else {
    std::erase_if(huge_, [&](const Pages& huge) { return huge.data() == data; });
  }
}

uint64_t PagePool::SharedBytes() const {
  absl::MutexLock lock(&mu_);
  return huge_.size() * Pages::kHugeBytes;
}

}  // namespace sparrow
