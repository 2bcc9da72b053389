#ifndef SPARROW_BASE_BOUNDED_QUEUE_H_
#define SPARROW_BASE_BOUNDED_QUEUE_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"

namespace sparrow {

// A first-in first-out queue of at most `items_max` items between threads. Thread-safe.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t items_max) : items_max_(items_max) { CHECK_GT(items_max, 0u); }

  // Waits for room. Returns false, and drops the item, once the queue is closed.
  bool Push(T item) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &BoundedQueue::CanPush));
    if (closed_) return false;
    items_.push_back(std::move(item));
    return true;
  }

  // Waits for an item. Returns nullopt once the queue is closed and empty.
  std::optional<T> Pop() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &BoundedQueue::CanPop));
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  // Whether Pop would return at once.
  bool HasItem() const {
    absl::MutexLock lock(&mu_);
    return CanPop();
  }

  // Wakes everybody. Items already inside can still be popped.
  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }

 private:
  bool CanPush() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_ || items_.size() < items_max_; }
  bool CanPop() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_ || !items_.empty(); }

  const size_t items_max_;

  mutable absl::Mutex mu_;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_BOUNDED_QUEUE_H_
