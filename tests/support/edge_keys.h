#ifndef SPARROW_TESTS_SUPPORT_EDGE_KEYS_H_
#define SPARROW_TESTS_SUPPORT_EDGE_KEYS_H_

// Keys that have been lost, merged or reserved elsewhere.

#include <cstdint>
#include <vector>

#include "embedding/partition.h"

namespace sparrow {

// Patterns that hash tables like to reserve, signs, and keys that 32 bits cannot tell apart.
// https://github.com/NVIDIA-Merlin/HugeCTR/issues/432, https://github.com/pytorch/pytorch/pull/193408
inline std::vector<Key> AwkwardKeys() {
  return {0,
          1,
          5,
          ~Key{0},  // -1
          ~Key{0} - 1,
          ~Key{0} - 2,
          Key{1} << 63,  // The least int64.
          (Key{1} << 63) - 1,
          (Key{1} << 63) + 1,
          Key{1} << 31,
          Key{1} << 32,
          (Key{1} << 32) + 5,
          0xfdfdfdfdfdfdfdfd};
}

// The key whose hash (Mix64, which decides the bucket) this is: its inverse, step by step backwards.
inline Key KeyOfHash(uint64_t x) {
  x ^= x >> 31 ^ x >> 62;
  x *= 0x319642b2d24d8ec3u;
  x ^= x >> 27 ^ x >> 54;
  x *= 0x96de1b173f119089u;
  x ^= x >> 30 ^ x >> 60;
  return x - 0x9e3779b97f4a7c15u;
}

// The last two keys before and the first two from each border between two servers' ranges, in order of hash, and those
// at both ends of the whole.
inline std::vector<Key> KeysAtRangeEdges(const ShardAssignment& shards) {
  std::vector<Key> keys;
  for (uint64_t bucket = 0; bucket < kBuckets; ++bucket) {
    if (bucket > 0 && shards.owner()[bucket] == shards.owner()[bucket - 1]) continue;
    const uint64_t edge = bucket << 52;
    for (const int64_t offset : {-2, -1, 0, 1}) keys.push_back(KeyOfHash(edge + static_cast<uint64_t>(offset)));
  }
  return keys;
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_EDGE_KEYS_H_
