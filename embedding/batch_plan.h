#ifndef SPARROW_EMBEDDING_BATCH_PLAN_H_
#define SPARROW_EMBEDDING_BATCH_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "embedding/partition.h"

namespace sparrow {

// A batch's keys grouped by stripe, which the low bits of their hash choose. Reusable; not thread-safe, but different
// groups may be used by different threads.
class BatchPlan {
 public:
  // Of every table of the process: a power of two from the least on. Enough that threads seldom wait for each other,
  // few enough that a batch's group of one stripe fills a window.
  static uint32_t Stripes();
  static constexpr uint32_t kStripesMin = 16;

  // The calling thread's own, so that its memory is reused from batch to batch: fresh pages cost more than the plan.
  static BatchPlan& OfThread();

  void Build(std::span<const Key> keys, uint32_t stripes = Stripes());

  uint32_t stripes() const { return static_cast<uint32_t>(missing.size()); }
  // Positions in `keys` of those of one stripe, ascending until VisitFound, which moves the missing ones to the front.
  std::span<uint32_t> Group(uint32_t stripe) {
    return std::span(order_).subspan(begin_[stripe], begin_[stripe + 1] - begin_[stripe]);
  }
  std::span<const uint32_t> Group(uint32_t stripe) const {
    return std::span(order_).subspan(begin_[stripe], begin_[stripe + 1] - begin_[stripe]);
  }
  std::span<uint32_t> Missing(uint32_t stripe) { return Group(stripe).first(missing[stripe]); }

  std::vector<uint32_t> missing;      // [stripes] Keys that VisitFound did not find.
  std::vector<uint64_t> cold_writes;  // [stripes] Stripe::cold_writes at that moment.

 private:
  friend class PlannedStripes;

  std::vector<uint8_t> stripe_of_;  // [n]
  std::vector<uint32_t> order_;     // [n]
  std::vector<uint32_t> begin_;     // [stripes + 1]
};

// Some of the stripes of a planned batch: all that one call of a table works on. A view of the plan.
class PlannedStripes {
 public:
  explicit PlannedStripes(BatchPlan* plan) : PlannedStripes(plan, 0, plan->stripes()) {}
  // [begin, end).
  PlannedStripes(BatchPlan* plan, uint32_t begin, uint32_t end) : plan_(plan), begin_(begin), end_(end) {}

  BatchPlan& plan() const { return *plan_; }
  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  uint64_t keys() const { return plan_->begin_[end_] - plan_->begin_[begin_]; }
  uint64_t TotalMissing() const;

  // Calls body(stripe) for each that has keys, on several threads if they are many.
  void ForEach(absl::FunctionRef<void(uint32_t stripe)> body) const;

 private:
  BatchPlan* plan_;
  uint32_t begin_;
  uint32_t end_;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_BATCH_PLAN_H_
