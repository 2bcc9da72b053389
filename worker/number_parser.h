#ifndef SPARROW_WORKER_NUMBER_PARSER_H_
#define SPARROW_WORKER_NUMBER_PARSER_H_

// Numbers as input files write them. The inline functions are the fast paths of a field that is exactly what it should
// be; the others take any bytes and say whether they are a number.

#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"

namespace sparrow {

// Decimal digits from p on; returns the first byte that is none. *value is right if there were at most 19.
// REQUIRES: some byte that is no digit follows.
inline const char* ScanDigits(const char* p, uint64_t* value) {
  uint64_t v = 0;
  for (unsigned digit; (digit = static_cast<unsigned char>(*p) - unsigned{'0'}) <= 9; ++p) v = v * 10 + digit;
  *value = v;
  return p;
}

// Eight hex digits of either case at p, most significant first. False: not all eight are. On all eight bytes at once:
// adding a constant to a 7-bit byte sets its top bit exactly if the byte reaches a bound, and never carries into the
// next.
inline bool ParseEightHexDigits(const char* p, uint64_t* value) {
  constexpr uint64_t kOnes = 0x0101010101010101u;
  constexpr uint64_t kTops = 0x80 * kOnes;
  uint64_t x;
  std::memcpy(&x, p, sizeof(x));
  const uint64_t lower = x | 0x20 * kOnes;
  const uint64_t digit = (x + (0x80 - '0') * kOnes) & ~(x + (0x7f - '9') * kOnes);
  const uint64_t letter = (lower + (0x80 - 'a') * kOnes) & ~(lower + (0x7f - 'f') * kOnes);
  if (((x & kTops) | (~(digit | letter) & kTops)) != 0) return false;
  uint64_t v = (x & 0x0f * kOnes) + 9 * ((x >> 6) & kOnes);
  v = __builtin_bswap64(v);
  v = (v | v >> 4) & 0x00ff00ff00ff00ffu;
  v = (v | v >> 8) & 0x0000ffff0000ffffu;
  *value = (v | v >> 16) & 0xffffffffu;
  return true;
}

// Decimal, -2^63 to 2^64-1; a negative number becomes its two's complement; a fraction of zeros (1.0) is passed over.
bool ParseIntegerId(absl::string_view text, uint64_t* id);

// 1 to 16 hex digits, without 0x.
bool ParseHexId(absl::string_view text, uint64_t* id);

// A finite decimal number, with or without exponent, that fits a float.
bool ParseDecimal(absl::string_view text, double* value);

// 0 or 1, also with a fraction of zeros.
bool ParseLabel(absl::string_view text, float* label);

}  // namespace sparrow

#endif  // SPARROW_WORKER_NUMBER_PARSER_H_
