#include "embedding/batch_plan.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <numeric>
#include <thread>

#include "base/parallel.h"
#include "embedding/row_index.h"

namespace sparrow {
namespace {

// To wake a second thread costs about as much as to read a thousand rows. A chunk of a pull or a push has fewer than
// two times as many, and its neighbours keep the other cores busy.
constexpr int64_t kKeysPerThread = 2048;

}  // namespace

uint32_t BatchPlan::Stripes() {
  constexpr uint32_t kStripesMax = 256;  // stripe_of_ has bytes.
  static const uint32_t stripes =
      std::clamp(std::bit_ceil(4 * std::thread::hardware_concurrency()), kStripesMin, kStripesMax);
  return stripes;
}

BatchPlan& BatchPlan::OfThread() {
  static thread_local BatchPlan plan;
  return plan;
}

void BatchPlan::Build(std::span<const Key> keys, uint32_t stripes) {
  missing.assign(stripes, 0);
  cold_writes.assign(stripes, 0);
  stripe_of_.resize(keys.size());
  order_.resize(keys.size());
  begin_.assign(stripes + 1, 0);
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint32_t stripe = RowIndex::Hash(keys[i]) & (stripes - 1);
    stripe_of_[i] = static_cast<uint8_t>(stripe);
    ++begin_[stripe + 1];
  }
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  // begin_[s] serves as the next free place of stripe s, which leaves it at the end of s: the begin of s + 1.
  for (size_t i = 0; i < keys.size(); ++i) order_[begin_[stripe_of_[i]]++] = static_cast<uint32_t>(i);
  for (uint32_t s = stripes; s > 0; --s) begin_[s] = begin_[s - 1];
  begin_[0] = 0;
}

uint64_t PlannedStripes::TotalMissing() const {
  return std::accumulate(plan_->missing.begin() + begin_, plan_->missing.begin() + end_, uint64_t{0});
}

void PlannedStripes::ForEach(absl::FunctionRef<void(uint32_t)> body) const {
  const int64_t stripes = end_ - begin_;
  const int64_t threads = std::clamp<int64_t>(static_cast<int64_t>(keys()) / kKeysPerThread, 1, stripes);
  const int64_t grain = (stripes + threads - 1) / threads;
  // Each calling thread begins somewhere else: two that began together would wait for each other at every stripe.
  static std::atomic<uint32_t> callers{0};  // Relaxed: only hands out numbers.
  static thread_local const uint32_t first_stripe = callers.fetch_add(11, std::memory_order_relaxed);
  ParallelFor(stripes, grain, [&, rotation = first_stripe](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const uint32_t s = begin_ + static_cast<uint32_t>((rotation + i) % stripes);
      if (!plan_->Group(s).empty()) body(s);
    }
  });
}

}  // namespace sparrow
