#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/random.h"
#include "embedding/row_codec.h"

namespace sparrow {
namespace {

constexpr float kInt8Max = 127;

template <typename T>
T ReadAt(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

void EncodeInt8(std::span<const float> row, char* out) {
  uint32_t largest = 0;
  for (const float value : row) largest = std::max(largest, row_type::Bits(value) & 0x7fffffff);
  const float scale = Int8Scale(largest);
  std::memcpy(out, &scale, sizeof(scale));
  out += sizeof(scale);
  for (size_t i = 0; i < row.size(); ++i) {
    // The limit matters only where the scale is subnormal and so has lost digits.
    const float steps = scale > 0 ? std::clamp(std::nearbyint(row[i] / scale), -kInt8Max, kInt8Max) : 0.0f;
    out[i] = static_cast<char>(static_cast<int8_t>(steps));
  }
}

}  // namespace

float Int8Scale(uint32_t largest) {
  if (largest >= row_type::kFloatInfinity) return std::numeric_limits<float>::quiet_NaN();
  float scale = row_type::FloatOfBits(largest) / kInt8Max;
  // The very largest floats: a scale that was rounded up would decode to an infinity.
  if (std::isinf(scale * kInt8Max)) scale = std::nextafter(scale, 0.0f);
  return scale;
}

void EncodeRowsCpu(RowType type, std::span<const float> rows, uint32_t dim, char* out, uint64_t* saturated) {
  DCHECK(dim > 0 && rows.size() % dim == 0);
  switch (type) {
    case RowType::kFloat32:
      if (!rows.empty()) std::memcpy(out, rows.data(), rows.size_bytes());
      return;
    case RowType::kBfloat16:
    case RowType::kFloat16:
      for (size_t i = 0; i < rows.size(); ++i) {
        const uint16_t bits =
            type == RowType::kBfloat16 ? ToBfloat16(rows[i], saturated) : ToFloat16(rows[i], saturated);
        std::memcpy(out + 2 * i, &bits, sizeof(bits));
      }
      return;
    case RowType::kInt8:
      for (size_t at = 0; at < rows.size(); at += dim, out += RowWireBytes(type, dim)) {
        EncodeInt8(rows.subspan(at, dim), out);
      }
      return;
  }
}

void DecodeRowsCpu(RowType type, const char* in, uint64_t n, uint32_t dim, std::span<float> rows) {
  CHECK_EQ(rows.size(), n * dim);
  switch (type) {
    case RowType::kFloat32:
      if (!rows.empty()) std::memcpy(rows.data(), in, rows.size_bytes());
      return;
    case RowType::kBfloat16:
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = FromBfloat16(ReadAt<uint16_t>(in + 2 * i));
      return;
    case RowType::kFloat16:
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = FromFloat16(ReadAt<uint16_t>(in + 2 * i));
      return;
    case RowType::kInt8:
      for (uint64_t row = 0; row < n; ++row, in += RowWireBytes(type, dim)) {
        const float scale = ReadAt<float>(in);
        for (uint32_t i = 0; i < dim; ++i) {
          rows[row * dim + i] = scale * static_cast<float>(static_cast<int8_t>(in[sizeof(scale) + i]));
        }
      }
      return;
  }
}

uint64_t RoundingSeed(uint64_t table_seed, uint64_t key, uint64_t updates) {
  constexpr uint64_t kStream = 0x726f756e64696e67;  // Apart from the stream of initial values.
  return RandomBits(RandomBits(table_seed ^ kStream, key), updates);
}

uint64_t EncodeStochasticCpu(RowType type, std::span<const float> row, uint64_t rounding_seed, char* out) {
  uint64_t saturated = 0;
  for (uint32_t i = 0; i < row.size(); ++i) {
    const uint32_t random = RoundingBits(rounding_seed, i);
    const uint16_t bits = type == RowType::kBfloat16 ? ToBfloat16Stochastic(row[i], random, &saturated)
                                                     : ToFloat16Stochastic(row[i], random, &saturated);
    std::memcpy(out + 2 * size_t{i}, &bits, sizeof(bits));
  }
  return saturated;
}

}  // namespace sparrow
