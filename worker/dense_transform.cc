#include "worker/dense_transform.h"

namespace sparrow {

const std::array<float, kLog1pTableSize>& Log1pTable() {
  static const std::array<float, kLog1pTableSize> table = [] {
    std::array<float, kLog1pTableSize> made;
    for (uint64_t i = 0; i < kLog1pTableSize; ++i) made[i] = static_cast<float>(std::log1p(static_cast<double>(i)));
    return made;
  }();
  return table;
}

}  // namespace sparrow
