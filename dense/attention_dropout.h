#ifndef SPARROW_DENSE_ATTENTION_DROPOUT_H_
#define SPARROW_DENSE_ATTENTION_DROPOUT_H_

// Dropout of attention's weights: a pure function of (stream, head of a sequence, query, key). Each weight has 8 random
// bits, so that the share which is dropped is a multiple of 1/256, the nearest to what was asked for but neither 0 nor
// 1, and what stays is scaled by this very share.
//
// Eight weights share one call of Philox: those of queries q and q + 8 with keys k, k + 1, k + 8 and k + 9, where q is
// 0 to 7 and k 0, 2, 4 or 6 modulo 16. A thread holds all eight where the tensor cores have queries as rows of a
// result, and half of them, its neighbour the other half, where they have keys: so no bits are computed for nothing,
// forward or backward.

#include <cstdint>

#include "base/cuda/host_device.h"
#include "base/philox.h"
#include "base/random.h"
#include "dense/dropout.h"

namespace sparrow {

// Of one head of one sequence.
struct HeadDropout {
  uint32_t key = 0;  // Of Philox.
  uint32_t first = 0;
  uint32_t threshold = 0;  // Of 2^32, a multiple of 2^24: the share that is dropped.
  float scale = 1;         // Of weights that stay: 1 / (1 - share).

  // `number`: of the head, over all sequences.
  SPARROW_HOST_DEVICE static HeadDropout Of(const Dropout& dropout, uint64_t number) {
    const uint64_t bits = RandomBits(dropout.stream, number);
    uint32_t share = static_cast<uint32_t>((uint64_t{dropout.threshold} + (1 << 23)) >> 24);
    if (share == 0 && dropout.enabled()) share = 1;
    if (share > 255) share = 255;
    return {.key = static_cast<uint32_t>(bits),
            .first = static_cast<uint32_t>(bits >> 32),
            .threshold = share << 24,
            .scale = 256.0f / static_cast<float>(256 - share)};
  }
  SPARROW_HOST_DEVICE bool enabled() const { return threshold > 0; }

  // The words are those of keys k and k + 8 together, and of keys k + 1 and k + 9. REQUIRES: q % 16 < 8; k % 16 is 0,
  // 2, 4 or 6.
  SPARROW_HOST_DEVICE RandomWords BitsOf(uint32_t q, uint32_t k) const { return Philox(q, first + k, key); }
  // Whether a weight stays, by its word: of query q + 8 if `query_on`, of key k + 8 or k + 9 if `key_on`.
  SPARROW_HOST_DEVICE bool Keeps(uint32_t word, bool query_on, bool key_on) const {
    return word << (24 - 16 * query_on - 8 * key_on) >= threshold;
  }

  // What weight (query, key) is multiplied by.
  SPARROW_HOST_DEVICE float Factor(uint32_t query, uint32_t key) const {
    const uint32_t word = BitsOf(query & ~8u, key & ~9u).words[key % 2];
    return Keeps(word, query & 8, key & 8) ? scale : 0.0f;
  }
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_ATTENTION_DROPOUT_H_
