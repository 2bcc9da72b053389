#ifndef SPARROW_EMBEDDING_ROW_CODEC_H_
#define SPARROW_EMBEDDING_ROW_CODEC_H_

// Rows of floats to and from the bytes that are sent (proto/sparrow/v1/row_type.proto). A row's bytes depend on that
// row alone, and rows follow each other without gaps; little-endian, at any address.
//
//   FLOAT32   dim floats
//   BFLOAT16, FLOAT16   dim 16-bit numbers, each rounded to the nearest, ties to even
//   INT8      a float scale, then dim signed bytes: value / scale, rounded to the nearest (ties to even). The scale is
//             the row's largest magnitude / 127, so no value is off by more than half of it, but for its last bits.
//
// A finite value beyond the range of a 16-bit type becomes the largest of its sign and is counted. NaN and infinities
// stay what they are in the 16-bit types, and make an INT8 row NaN throughout: nothing here refuses them (tables refuse
// gradients, request checks refuse rows). Decoding accepts any bytes.

#include <cstdint>
#include <span>

#include "embedding/row_type.h"

namespace sparrow {

// Bytes of one row.
inline uint64_t RowWireBytes(RowType type, uint32_t dim) {
  switch (type) {
    case RowType::kFloat32:
      return uint64_t{4} * dim;
    case RowType::kBfloat16:
    case RowType::kFloat16:
      return uint64_t{2} * dim;
    case RowType::kInt8:
      return sizeof(float) + uint64_t{dim};
  }
  return 0;
}

// Writes n * RowWireBytes(type, dim) bytes and adds the number of values out of range to *saturated.
// REQUIRES: rows.size() a multiple of dim.
void EncodeRows(RowType type, std::span<const float> rows /*[n, dim]*/, uint32_t dim, char* out, uint64_t* saturated);

// Reads n * RowWireBytes(type, dim) bytes. REQUIRES: rows.size() == n * dim.
void DecodeRows(RowType type, const char* in, uint64_t n, uint32_t dim, std::span<float> rows /*[n, dim]*/);

// The same in plain loops: what the vectorised ones above must equal, bit for bit.
void EncodeRowsCpu(RowType type, std::span<const float> rows /*[n, dim]*/, uint32_t dim, char* out,
                   uint64_t* saturated);
void DecodeRowsCpu(RowType type, const char* in, uint64_t n, uint32_t dim, std::span<float> rows /*[n, dim]*/);

// The random numbers of the stochastic rounding of one row at one of its updates (0: when it is made), a pure function,
// so that runs are bit-equal. Fixed for ever, as resumed runs must go on like those that were not stopped.
uint64_t RoundingSeed(uint64_t table_seed, uint64_t key, uint64_t updates);
inline uint32_t RoundingBits(uint64_t rounding_seed, uint32_t column) {
  // The 32-bit mixer "lowbias32" (Wellons, "Hash Function Prospector", 2018, with the constants found in 2020).
  uint32_t x = static_cast<uint32_t>(rounding_seed) + column * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) * 0xd35a2d97u;
  return x ^ (x >> 15) ^ static_cast<uint32_t>(rounding_seed >> 32);
}

// One row to a 16-bit type, rounded stochastically (embedding/row_type.h) with the bits above. Writes 2 * row.size()
// bytes and returns how many values were out of range. REQUIRES: type is kBfloat16 or kFloat16.
uint64_t EncodeStochastic(RowType type, std::span<const float> row /*[dim]*/, uint64_t rounding_seed, char* out);
uint64_t EncodeStochasticCpu(RowType type, std::span<const float> row /*[dim]*/, uint64_t rounding_seed, char* out);

// Of a row whose largest magnitude is `largest`, as bits without the sign: the scale of INT8. NaN if not finite.
float Int8Scale(uint32_t largest);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_CODEC_H_
