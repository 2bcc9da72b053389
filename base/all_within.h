#ifndef SPARROW_BASE_ALL_WITHIN_H_
#define SPARROW_BASE_ALL_WITHIN_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace sparrow {

// Whether |value| <= limit for all; a NaN is not. REQUIRES: limit is finite and not negative.
inline bool AllWithin(std::span<const float> values, float limit) {
  // Magnitudes have the order of their bits, with infinity and NaN on top. Eight at a time and without an early exit,
  // so that compilers make vectors of it.
  constexpr uint32_t kMagnitude = 0x7fffffff;
  uint32_t largest[8] = {};
  size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    for (size_t k = 0; k < 8; ++k) {
      largest[k] = std::max(largest[k], std::bit_cast<uint32_t>(values[i + k]) & kMagnitude);
    }
  }
  for (; i < values.size(); ++i) {
    largest[0] = std::max(largest[0], std::bit_cast<uint32_t>(values[i]) & kMagnitude);
  }
  return *std::max_element(largest, largest + 8) <= std::bit_cast<uint32_t>(limit);
}

inline bool AllFinite(std::span<const float> values) { return AllWithin(values, std::numeric_limits<float>::max()); }

}  // namespace sparrow

#endif  // SPARROW_BASE_ALL_WITHIN_H_
