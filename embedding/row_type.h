#ifndef SPARROW_EMBEDDING_ROW_TYPE_H_
#define SPARROW_EMBEDDING_ROW_TYPE_H_

// How the numbers of a row are stored or sent (proto/sparrow/v1/row_type.proto, whose numbers these are), and the two
// 16-bit types, number by number. bfloat16 is the upper half of a float; float16 is IEEE 754's binary16.
//
// A finite value never becomes an infinity: where rounding would make it one, it becomes the largest finite value of
// its sign and is counted. A NaN becomes a quiet NaN of the same sign. An infinity stays one when rounded to the
// nearest (what is sent: tables and requests refuse it elsewhere), and counts as out of range when rounded
// stochastically (what is stored: an update that left float32's range).

#include <cstdint>
#include <cstring>

#include "base/cuda/host_device.h"

namespace sparrow {

enum class RowType : uint8_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2, kInt8 = 3 };

inline const char* RowTypeName(RowType type) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "int8"};
  return kNames[static_cast<uint8_t>(type)];
}

namespace row_type {

constexpr uint32_t kFloatInfinity = 0x7f800000;
constexpr uint16_t kBfloat16Max = 0x7f7f, kFloat16Max = 0x7bff;
constexpr uint16_t kFloat16Infinity = 0x7c00;

SPARROW_HOST_DEVICE inline uint32_t Bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
SPARROW_HOST_DEVICE inline float FloatOfBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// The finite value whose bits without the sign are `magnitude`, in float16: `kept` are its bits rounded towards 0
// (above kFloat16Max if out of range), and what was cut off is `cut` / 2^cut_bits of a unit in the last place.
struct Float16Cut {
  uint32_t kept;
  uint32_t cut;
  uint32_t cut_bits;  // 13 to 31.
};
SPARROW_HOST_DEVICE inline Float16Cut CutToFloat16(uint32_t magnitude) {
  constexpr uint32_t kSmallestNormal = 0x38800000;  // 2^-14.
  if (magnitude >= kSmallestNormal) {
    const uint32_t rebiased = magnitude - ((127u - 15u) << 23);
    return {rebiased >> 13, rebiased & 0x1fff, 13};
  }
  // Units of 2^-24. A float of exponent e (127 + ...) is its 24-bit significand times 2^(e - 150).
  const uint32_t exponent = magnitude >> 23;
  const uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
  const uint32_t shift = 126 - exponent;
  if (shift <= 31) return {significand >> shift, significand & ((1u << shift) - 1), shift};
  // Less than 2^-7 of a unit: 31 bits of it are enough.
  return {0, shift - 31 < 24 ? significand >> (shift - 31) : 0, 31};
}

}  // namespace row_type

SPARROW_HOST_DEVICE inline float FromBfloat16(uint16_t bits) { return row_type::FloatOfBits(uint32_t{bits} << 16); }

SPARROW_HOST_DEVICE inline float FromFloat16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= row_type::kFloat16Infinity) {
    // A signalling NaN becomes a quiet one, as the processor makes it.
    const uint32_t quiet = magnitude > row_type::kFloat16Infinity ? 0x400000u : 0u;
    return row_type::FloatOfBits(sign | row_type::kFloatInfinity | quiet | (magnitude << 13));
  }
  if (magnitude >= 0x400) return row_type::FloatOfBits(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return row_type::FloatOfBits(sign | row_type::Bits(value));
}

// To the nearest; of two equally near, to the even one.
SPARROW_HOST_DEVICE inline uint16_t ToBfloat16(float value, uint64_t* saturated) {
  const uint32_t bits = row_type::Bits(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (magnitude > row_type::kFloatInfinity) return static_cast<uint16_t>((bits >> 16) | 0x40);
  if (magnitude == row_type::kFloatInfinity) return static_cast<uint16_t>(bits >> 16);
  const uint32_t rounded = (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16;
  if (rounded > row_type::kBfloat16Max) {
    ++*saturated;
    return sign | row_type::kBfloat16Max;
  }
  return static_cast<uint16_t>(sign | rounded);
}

SPARROW_HOST_DEVICE inline uint16_t ToFloat16(float value, uint64_t* saturated) {
  const uint32_t bits = row_type::Bits(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (magnitude > row_type::kFloatInfinity) {
    return static_cast<uint16_t>(sign | row_type::kFloat16Infinity | 0x200 | ((magnitude >> 13) & 0x3ff));
  }
  if (magnitude == row_type::kFloatInfinity) return sign | row_type::kFloat16Infinity;
  const row_type::Float16Cut cut = row_type::CutToFloat16(magnitude);
  const uint32_t half = 1u << (cut.cut_bits - 1);
  const uint32_t up = cut.cut > half || (cut.cut == half && (cut.kept & 1) != 0) ? 1 : 0;
  if (cut.kept + up > row_type::kFloat16Max) {
    ++*saturated;
    return sign | row_type::kFloat16Max;
  }
  return static_cast<uint16_t>(sign | (cut.kept + up));
}

// Up or down at random, so that the mean of many roundings is the value. `random` is 32 uniform random bits.
SPARROW_HOST_DEVICE inline uint16_t ToBfloat16Stochastic(float value, uint32_t random, uint64_t* saturated) {
  const uint32_t bits = row_type::Bits(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > row_type::kFloatInfinity) return ToBfloat16(value, saturated);
  const uint32_t rounded = (magnitude + (random >> 16)) >> 16;
  const uint32_t sign = (bits >> 16) & 0x8000;
  if (rounded > row_type::kBfloat16Max) {
    ++*saturated;
    return static_cast<uint16_t>(sign | row_type::kBfloat16Max);
  }
  return static_cast<uint16_t>(sign | rounded);
}

SPARROW_HOST_DEVICE inline uint16_t ToFloat16Stochastic(float value, uint32_t random, uint64_t* saturated) {
  const uint32_t bits = row_type::Bits(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > row_type::kFloatInfinity) return ToFloat16(value, saturated);
  const row_type::Float16Cut cut = row_type::CutToFloat16(magnitude);
  const uint32_t up = cut.cut > (random >> (32 - cut.cut_bits)) ? 1 : 0;  // With probability cut / 2^cut_bits.
  const uint32_t sign = (bits >> 16) & 0x8000;
  if (cut.kept + up > row_type::kFloat16Max) {
    ++*saturated;
    return static_cast<uint16_t>(sign | row_type::kFloat16Max);
  }
  return static_cast<uint16_t>(sign | (cut.kept + up));
}

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_TYPE_H_
