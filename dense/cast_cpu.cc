#include <bit>
#include <cmath>

#include "base/check.h"
#include "dense/cast.h"

namespace sparrow {
namespace {

uint16_t ToBits(Precision precision, float value) {
  if (precision == Precision::kFloat16) return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;  // As the GPU has it.
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

float FromBits(Precision precision, uint16_t bits) {
  if (precision == Precision::kFloat16) return static_cast<float>(std::bit_cast<_Float16>(bits));
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

void CastCpu(Precision precision, ConstMatrix from, const DeviceMatrix& to) {
  CHECK(to.rows == from.rows && to.cols >= from.cols);
  for (int64_t i = 0; i < to.rows; ++i) {
    for (int64_t j = 0; j < to.cols; ++j) {
      const float value = j < from.cols ? from.row(i)[j] : 0.0f;
      if (ElementBytes(precision) == 4) {
        static_cast<float*>(to.data)[i * to.stride + j] = value;
      } else {
        static_cast<uint16_t*>(to.data)[i * to.stride + j] = ToBits(precision, value);
      }
    }
  }
}

}  // namespace sparrow
