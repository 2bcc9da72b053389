#include <cmath>

#include "dense/loss_scale.h"

namespace sparrow {

uint64_t CountNotFiniteCpu(ConstMatrix values) {
  uint64_t count = 0;
  for (int64_t i = 0; i < values.rows; ++i) {
    for (int64_t j = 0; j < values.cols; ++j) count += std::isfinite(values.data[i * values.stride + j]) ? 0 : 1;
  }
  return count;
}

void UnscaleCpu(std::span<float> values, const float* scale) {
  const float factor = 1 / *scale;
  for (float& value : values) value *= factor;
}

}  // namespace sparrow
