#ifndef SPARROW_TESTS_SUPPORT_TABLE_INPUTS_H_
#define SPARROW_TESTS_SUPPORT_TABLE_INPUTS_H_

// Keys and gradients for tests of tables.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "base/random.h"
#include "embedding/partition.h"

namespace sparrow {

inline std::vector<Key> KeysFrom(Key first, size_t n) {
  std::vector<Key> keys(n);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

inline std::vector<Key> ScatteredKeys(size_t n, uint64_t seed) {
  std::vector<Key> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = RandomBits(seed, i);
  return keys;
}

inline std::vector<float> RandomFloats(size_t n, float bound, std::mt19937_64* random) {
  std::uniform_real_distribution<float> uniform(-bound, bound);
  std::vector<float> values(n);
  for (float& value : values) value = uniform(*random);
  return values;
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_TABLE_INPUTS_H_
