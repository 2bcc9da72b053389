#include "worker/distinct_counter.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/random.h"

namespace sparrow {

void DistinctCounter::Add(uint64_t value) {
  if (!exact()) {
    AddToRegisters(value);
    return;
  }
  values_.insert(value);
  if (values_.size() <= kExactMax) return;
  registers_.assign(size_t{1} << kIndexBits, 0);
  for (const uint64_t seen : values_) AddToRegisters(seen);
  values_ = {};
}

void DistinctCounter::AddToRegisters(uint64_t value) {
  const uint64_t mixed = Mix64(value);
  const uint64_t rest = mixed << kIndexBits | uint64_t{1} << (kIndexBits - 1);  // The bit bounds the count of zeros.
  uint8_t& rank = registers_[mixed >> (64 - kIndexBits)];
  rank = std::max(rank, static_cast<uint8_t>(std::countl_zero(rest) + 1));
}

uint64_t DistinctCounter::Count() const {
  if (exact()) return values_.size();
  const double m = static_cast<double>(registers_.size());
  double sum = 0;
  for (const uint8_t rank : registers_) sum += std::ldexp(1.0, -rank);
  const double alpha = 0.7213 / (1 + 1.079 / m);
  return static_cast<uint64_t>(std::llround(alpha * m * m / sum));
}

}  // namespace sparrow
