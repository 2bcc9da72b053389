#ifndef SPARROW_WORKER_DENSE_TRANSFORM_H_
#define SPARROW_WORKER_DENSE_TRANSFORM_H_

#include <array>
#include <cmath>
#include <cstdint>

namespace sparrow {

// float(log(1 + x)) of small integers, which most dense inputs of click logs are.
inline constexpr uint64_t kLog1pTableSize = 1024;
const std::array<float, kLog1pTableSize>& Log1pTable();

// log(1 + x), within 1 ulp of the exact value as a float.
inline float Log1pOf(uint64_t x, const float* table) {
  return x < kLog1pTableSize ? table[x] : static_cast<float>(std::log(1.0 + static_cast<double>(x)));
}
inline float Log1pOf(double x) { return static_cast<float>(std::log1p(x)); }

}  // namespace sparrow

#endif  // SPARROW_WORKER_DENSE_TRANSFORM_H_
