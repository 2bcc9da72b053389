#ifndef SPARROW_EMBEDDING_KEY_FILTER_H_
#define SPARROW_EMBEDDING_KEY_FILTER_H_

// A set of (table, key) pairs that never denies one it was given, and takes about one in kBitsPerKey of the others for
// its own: bits of an array, one hash a key (a Bloom filter with one hash function; more would cost more cache misses
// than the few errors that they save are worth). For who needs "certainly not" quickly.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "embedding/partition.h"

namespace sparrow {

// Add and MayHave are thread-safe; a MayHave sees the Adds that are ordered before it.
class KeyFilter {
 public:
  // expected_keys: how many it is made for; more only make it coarser.
  explicit KeyFilter(uint64_t expected_keys)
      : mask_(std::bit_ceil(std::max<uint64_t>(expected_keys, 1024) * kBitsPerKey) - 1), words_((mask_ + 1) / 64) {}

  void Add(uint32_t table, std::span<const Key> keys) {
    for (const Key key : keys) {
      const uint64_t bit = BitOf(table, key);
      // Often it is set already, and a look is cheaper than a locked write.
      if (!IsSet(bit)) words_[bit / 64].fetch_or(uint64_t{1} << (bit % 64), std::memory_order_relaxed);
    }
  }

  bool MayHave(uint32_t table, Key key) const { return IsSet(BitOf(table, key)); }

 private:
  static constexpr uint64_t kBitsPerKey = 32;

  uint64_t BitOf(uint32_t table, Key key) const { return RandomBits(table, key) & mask_; }
  bool IsSet(uint64_t bit) const { return (words_[bit / 64].load(std::memory_order_relaxed) >> (bit % 64) & 1) != 0; }

  const uint64_t mask_;  // Bits less one; the bits are a power of two.

  // Relaxed: bits are only ever set; who must see them is ordered behind the Add by other means.
  std::vector<std::atomic<uint64_t>> words_;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_KEY_FILTER_H_
