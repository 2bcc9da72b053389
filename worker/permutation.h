#ifndef SPARROW_WORKER_PERMUTATION_H_
#define SPARROW_WORKER_PERMUTATION_H_

// A random order of n things of which any element is computed alone, without a table: a Feistel network (Luby and
// Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions", 1988) permutes numbers of an even
// number of bits, and what is not below n is permuted again until it is (cycle walking: Black and Rogaway, "Ciphers
// with Arbitrary Finite Domains", 2002), less than four times on average. Fixed for ever: resumed jobs depend on it.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/check.h"
#include "base/random.h"

namespace sparrow {

// A pure function of (seed, n).
class Permutation {
 public:
  // REQUIRES: 0 < n <= 2^62.
  Permutation(uint64_t n, uint64_t seed) : n_(n), seed_(seed) {
    CHECK(n > 0 && n <= uint64_t{1} << 62) << n;
    half_bits_ = std::max(1, static_cast<int>(std::bit_width(n - 1) + 1) / 2);
  }

  // Where i goes, below n. REQUIRES: i < n.
  uint64_t operator()(uint64_t i) const {
    DCHECK(i < n_);
    do {
      i = Network(i);
    } while (i >= n_);
    return i;
  }

 private:
  static constexpr uint64_t kRounds = 8;  // Four are enough for wide halves; those of short sequences are narrow.

  uint64_t Network(uint64_t i) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = i >> half_bits_;
    uint64_t right = i & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      // Each round has a function of its own, keyed by the seed.
      const uint64_t mixed = left ^ (RandomBits(RandomBits(seed_, round), right) & mask);
      left = right;
      right = mixed;
    }
    return left << half_bits_ | right;
  }

  uint64_t n_;
  uint64_t seed_;
  int half_bits_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_PERMUTATION_H_
