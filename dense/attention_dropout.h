#ifndef SPARROW_DENSE_ATTENTION_DROPOUT_H_
#define SPARROW_DENSE_ATTENTION_DROPOUT_H_

// Dropout of attention's weights: a pure function of (stream, head of a sequence, query, key). Each weight has 16
// random bits, so that the share which is dropped is a multiple of 2^-16, the nearest to what was asked for and less
// than 1, and what stays is scaled by this very share.
//
// Four weights share one call of Philox: those of queries q and q + 8 with keys k and k + 8, where q and k are 0 to 7
// modulo 16. A thread holds all four of them where the tensor cores have queries as rows of a result, and also where
// they have keys: so no bits are computed for nothing, forward or backward.

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
  uint32_t threshold = 0;  // Of 2^32, a multiple of 2^16: the share that is dropped.
  float scale = 1;         // Of weights that stay: 1 / (1 - share).

  // `number`: of the head, over all sequences.
  SPARROW_HOST_DEVICE static HeadDropout Of(const Dropout& dropout, uint64_t number) {
    const uint64_t bits = RandomBits(dropout.stream, number);
    const uint32_t rounded = static_cast<uint32_t>((uint64_t{dropout.threshold} + 0x8000) >> 16);
    const uint32_t share = rounded < 0xffff ? rounded : 0xffff;
    return {.key = static_cast<uint32_t>(bits),
            .first = static_cast<uint32_t>(bits >> 32),
            .threshold = share << 16,
            .scale = 65536.0f / static_cast<float>(65536 - share)};
  }
  SPARROW_HOST_DEVICE bool enabled() const { return threshold > 0; }

  // Of queries q and q + 8 the words, of keys k and k + 8 their lower and upper half. REQUIRES: q % 16 < 8; k % 16 < 8.
  SPARROW_HOST_DEVICE RandomWords BitsOf(uint32_t q, uint32_t k) const { return Philox(q, first + k, key); }
  // Whether the weight stays whose bits are the upper half of `bits`.
  SPARROW_HOST_DEVICE bool Keeps(uint32_t bits) const { return bits >= threshold; }

  // What weight (query, key) is multiplied by.
  SPARROW_HOST_DEVICE float Factor(uint32_t query, uint32_t key) const {
    const uint32_t word = BitsOf(query & ~8u, key & ~8u).words[query / 8 % 2];
    return Keeps(key & 8 ? word : word << 16) ? scale : 0.0f;
  }
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_ATTENTION_DROPOUT_H_
