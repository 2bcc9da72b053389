#ifndef SPARROW_TESTS_WORKER_THREAD_COLLECTIVE_H_
#define SPARROW_TESTS_WORKER_THREAD_COLLECTIVE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "dense/collective.h"

namespace sparrow {

// A group of threads in one test. Every operation is an exchange of everybody's bytes. A member that is destroyed makes
// the others' operations fail, as the end of a process does.
class ThreadGroup {
 public:
  explicit ThreadGroup(uint32_t size) : size_(size), offered_(size) {}

  uint32_t size() const { return size_; }

  // Everybody's bytes, once all have come.
  absl::StatusOr<std::vector<std::string>> Exchange(uint32_t rank, std::string bytes) {
    absl::MutexLock lock(&mu_);
    offered_[rank] = std::move(bytes);
    const uint64_t round = round_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      result_ = offered_;
    }
    const auto over = [this, round]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return round_ > round || left_; };
    mu_.Await(absl::Condition(&over));
    if (round_ == round) return absl::UnavailableError("another member has left");
    return result_;
  }
  void Leave() {
    absl::MutexLock lock(&mu_);
    left_ = true;
  }

 private:
  const uint32_t size_;
  absl::Mutex mu_;
  uint32_t arrived_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t round_ ABSL_GUARDED_BY(mu_) = 0;
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::string> offered_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> result_ ABSL_GUARDED_BY(mu_);
};

class ThreadCollective final : public Collective {
 public:
  // The group outlives its members.
  ThreadCollective(ThreadGroup* group, uint32_t rank) : group_(group), rank_(rank) {}
  ~ThreadCollective() override { group_->Leave(); }

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return group_->size(); }
  absl::Status AllReduceSum(std::span<float> values) override { return Sum(values); }
  absl::Status AllReduceSum(std::span<double> values) override { return Sum(values); }
  absl::Status ReduceScatterSum(std::span<float> values, const SliceEnds& ends) override {
    slice_bytes_sent_ += values.size_bytes() - SliceOf(ends, rank_).size() * sizeof(float);
    return Sum(values);
  }
  absl::Status AllGatherSlices(std::span<float> values, const SliceEnds& ends) override {
    slice_bytes_sent_ += values.size_bytes() - SliceOf(ends, (rank_ + 1) % size()).size() * sizeof(float);
    const auto all =
        group_->Exchange(rank_, std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
    if (!all.ok()) return all.status();
    for (uint32_t r = 0; r < size(); ++r) {
      const Slice slice = SliceOf(ends, r);
      (*all)[r].copy(reinterpret_cast<char*>(values.data() + slice.begin), slice.size() * sizeof(float),
                     slice.begin * sizeof(float));
    }
    return absl::OkStatus();
  }
  uint64_t slice_bytes_sent() const override { return slice_bytes_sent_; }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override {
    return group_->Exchange(rank_, std::string(bytes));
  }
  absl::Status Barrier() override { return group_->Exchange(rank_, "").status(); }

 private:
  template <typename T>
  absl::Status Sum(std::span<T> values) {
    const auto all =
        group_->Exchange(rank_, std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
    if (!all.ok()) return all.status();
    for (size_t i = 0; i < values.size(); ++i) {
      T sum = 0;
      for (const std::string& bytes : *all) {
        T value;
        bytes.copy(reinterpret_cast<char*>(&value), sizeof(T), i * sizeof(T));
        sum += value;
      }
      values[i] = sum;
    }
    return absl::OkStatus();
  }

  ThreadGroup* const group_;
  const uint32_t rank_;
  uint64_t slice_bytes_sent_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_WORKER_THREAD_COLLECTIVE_H_
