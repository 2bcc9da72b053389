#ifndef SPARROW_BENCH_SUPPORT_ZIPF_H_
#define SPARROW_BENCH_SUPPORT_ZIPF_H_

#include <cstdint>
#include <vector>

namespace sparrow {

// Ranks by Zipf's law: of the ranks `first` to `count` - 1, r comes with a probability proportional to
// (r + 1)^-exponent. 12 bytes a rank; a draw is two look-ups or so. Immutable; thread-safe.
class Zipf {
 public:
  // REQUIRES: first < count; count - first < 2^32.
  Zipf(uint64_t count, double exponent, uint64_t first = 0);

  // The rank of a number that is uniform in [0, 1).
  uint64_t Rank(double uniform) const;

 private:
  const uint64_t first_;
  std::vector<double> cumulative_;  // [ranks] Sums of the weights up to each one's own.
  std::vector<uint32_t> guide_;     // [ranks] guide_[g]: the rank, less first_, of uniform = g / ranks.
};

}  // namespace sparrow

#endif  // SPARROW_BENCH_SUPPORT_ZIPF_H_
