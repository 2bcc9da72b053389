#ifndef SPARROW_SERVER_STEP_PULLS_H_
#define SPARROW_SERVER_STEP_PULLS_H_

// What the workers have pulled for one step, and so which rows its pushes may touch: what a pull ahead of the next step
// must know (Job::Pull). Pushes are checked against the same filter, so a row that it denies is one that no push of the
// step can touch, whatever the workers send.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "embedding/key_filter.h"

namespace sparrow {

class StepPulls {
 public:
  StepPulls(uint64_t step, uint32_t workers, uint64_t expected_keys)
      : step_(step), workers_(workers), incomplete_workers_(workers), filter_(expected_keys) {}

  uint64_t step() const { return step_; }

  // Keys are added before their part is noted. Thread-safe.
  KeyFilter& filter() { return filter_; }
  const KeyFilter& filter() const { return filter_; }

  // Positions of the keys, ascending, whose rows this step may change: that its pushes may touch, because they were
  // pulled for it or are lent (`lent`, positions too), or that with `evicts` may be forgotten at its end. Thread-safe.
  std::vector<uint32_t> MayChange(uint32_t table, std::span<const Key> keys, bool evicts,
                                  std::span<const uint32_t> lent) const;

  // The same for some of the keys: sets may_change[position], and returns how many were not set before.
  uint64_t MarkMayChange(uint32_t table, std::span<const Key> keys, std::span<const uint32_t> positions,
                         std::span<uint8_t> may_change) const;

  // All keys of a worker's part have been added. Again for the same part: nothing. InvalidArgument if the worker says
  // another number of parts than before. REQUIRES: part < parts, worker < workers. Not thread-safe, like the rest.
  absl::Status Note(uint32_t worker, uint32_t part, uint32_t parts, uint64_t keys);
  bool HasAllOf(uint32_t worker) const { return workers_[worker].missing == 0; }
  bool complete() const { return incomplete_workers_ == 0; }
  uint64_t keys() const { return keys_; }  // In the parts noted.

 private:
  struct Worker {
    std::vector<bool> seen;  // [parts]; empty: nothing has come.
    uint32_t missing = 1;    // Parts.
  };

  const uint64_t step_;
  std::vector<Worker> workers_;
  uint32_t incomplete_workers_;
  uint64_t keys_ = 0;
  KeyFilter filter_;
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_STEP_PULLS_H_
