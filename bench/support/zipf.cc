// A table of cumulative weights, searched from where a second table says that the answer begins (Chen and Asau, "On
// generating random variates from an empirical distribution", 1974): exact, and two steps a draw on average.

#include "bench/support/zipf.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace sparrow {

Zipf::Zipf(uint64_t count, double exponent, uint64_t first) : first_(first) {
  CHECK_LT(first, count);
  CHECK_LT(count - first, uint64_t{std::numeric_limits<uint32_t>::max()});
  const size_t ranks = static_cast<size_t>(count - first);
  cumulative_.resize(ranks);
  guide_.resize(ranks);
  double sum = 0;
  for (size_t i = 0; i < ranks; ++i) {
    cumulative_[i] = sum += std::pow(static_cast<double>(first + i + 1), -exponent);
  }
  size_t rank = 0;
  for (size_t g = 0; g < ranks; ++g) {
    const double sought = sum * static_cast<double>(g) / static_cast<double>(ranks);
    while (rank + 1 < ranks && cumulative_[rank] <= sought) ++rank;
    guide_[g] = static_cast<uint32_t>(rank);
  }
}

uint64_t Zipf::Rank(double uniform) const {
  const size_t last = cumulative_.size() - 1;
  const double sought = uniform * cumulative_.back();
  const size_t g = std::min(last, static_cast<size_t>(uniform * static_cast<double>(cumulative_.size())));
  // One cell back: the product above may have been rounded up into this one.
  size_t rank = guide_[g > 0 ? g - 1 : 0];
  while (rank < last && cumulative_[rank] <= sought) ++rank;
  return first_ + rank;
}

}  // namespace sparrow
