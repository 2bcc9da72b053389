// Eight numbers at once, with AVX2 and F16C, which -march=x86-64-v3 has. Vectors that hold a value beyond the range of
// the 16-bit type (or a NaN) are rare and go through the plain loop, as does what is left of a row.

#include "embedding/row_codec.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace sparrow {
namespace {

constexpr size_t kLanes = 8;

__m256i Magnitude(__m256 x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }

// Bits of float 65520, from which on float16 rounds to infinity, and of bfloat16's like, from which on the rounding
// would carry into infinity.
constexpr int32_t kFloat16Over = 0x477ff000, kBfloat16Over = 0x7f7f8000;

// Calls vector(in, out) for eight numbers at a time if all are below `over`, and `plain` otherwise and for the rest.
template <RowType kType, int32_t kOver, typename Vector>
void EncodeHalves(std::span<const float> values, char* out, uint64_t* saturated, Vector vector) {
  const __m256i last_good = _mm256_set1_epi32(kOver - 1);
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    const __m256 x = _mm256_loadu_ps(values.data() + i);
    const __m256i over = _mm256_cmpgt_epi32(Magnitude(x), last_good);
    if (_mm256_testz_si256(over, over) != 0) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i), vector(x));
    } else {
      EncodeRowsCpu(kType, values.subspan(i, kLanes), 1, out + 2 * i, saturated);
    }
  }
  EncodeRowsCpu(kType, values.subspan(i), 1, out + 2 * i, saturated);
}

__m128i Words(__m256i low_halves) {
  return _mm_packus_epi32(_mm256_castsi256_si128(low_halves), _mm256_extracti128_si256(low_halves, 1));
}

__m128i Bfloat16Of(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return Words(_mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16));
}

__m128i Float16Of(__m256 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// RoundingBits of the columns of the next eight numbers.
class RandomLanes {
 public:
  explicit RandomLanes(uint64_t seed)
      : high_(_mm256_set1_epi32(static_cast<int>(seed >> 32))),
        next_(_mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(seed)),
                               _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), Constant(0x9e3779b9)))) {}
  __m256i Next() {
    __m256i x = next_;
    next_ = _mm256_add_epi32(next_, Constant(8 * 0x9e3779b9u));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 16)), Constant(0x21f0aaad));
    x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)), Constant(0xd35a2d97));
    return _mm256_xor_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)), high_);
  }

 private:
  static __m256i Constant(uint32_t bits) { return _mm256_set1_epi32(static_cast<int>(bits)); }

  const __m256i high_;
  __m256i next_;
};

// Adds what is random to the bits that are cut off: a carry rounds up.
__m128i Bfloat16Stochastic(__m256 x, __m256i random) {
  return Words(_mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_srli_epi32(random, 16)), 16));
}

// The plain loop rounds up where the bits cut off are more than `random`; so does a carry from adding its complement.
__m128i Float16Stochastic(__m256 x, __m256i random) {
  const __m256i complement = _mm256_srli_epi32(_mm256_xor_si256(random, _mm256_set1_epi32(-1)), 19);
  const __m256i sum = _mm256_add_epi32(_mm256_castps_si256(x), complement);
  const __m256i kept = _mm256_and_si256(sum, _mm256_set1_epi32(~0x1fff));
  return _mm256_cvtps_ph(_mm256_castsi256_ps(kept), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// Magnitudes that `vector` is right for: from `least` (or 0) to `most`.
template <RowType kType, int32_t kLeast, int32_t kMost, typename Vector>
uint64_t EncodeRandomly(std::span<const float> row, uint64_t seed, char* out, Vector vector) {
  RandomLanes lanes(seed);
  uint64_t saturated = 0;
  const auto plain = [&](size_t i) {
    const uint32_t random = RoundingBits(seed, static_cast<uint32_t>(i));
    const uint16_t bits = kType == RowType::kBfloat16 ? ToBfloat16Stochastic(row[i], random, &saturated)
                                                      : ToFloat16Stochastic(row[i], random, &saturated);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  };
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    const __m256 x = _mm256_loadu_ps(row.data() + i);
    const __m256i random = lanes.Next();
    const __m256i magnitude = Magnitude(x);
    const __m256i small = _mm256_andnot_si256(_mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256()),
                                              _mm256_cmpgt_epi32(_mm256_set1_epi32(kLeast), magnitude));
    const __m256i odd = _mm256_or_si256(small, _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kMost)));
    if (_mm256_testz_si256(odd, odd) != 0) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 2 * i), vector(x, random));
    } else {
      for (size_t lane = 0; lane < kLanes; ++lane) plain(i + lane);
    }
  }
  for (; i < row.size(); ++i) plain(i);
  return saturated;
}

uint32_t LargestMagnitude(std::span<const float> row) {
  __m256i largest = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    largest = _mm256_max_epu32(largest, Magnitude(_mm256_loadu_ps(row.data() + i)));
  }
  alignas(32) uint32_t lanes[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
  uint32_t result = *std::max_element(lanes, lanes + kLanes);
  for (; i < row.size(); ++i) result = std::max(result, row_type::Bits(row[i]) & 0x7fffffff);
  return result;
}

void EncodeInt8(std::span<const float> row, char* out) {
  const uint32_t largest = LargestMagnitude(row);
  const float scale = Int8Scale(largest);
  // Zeros, rows that are not finite and those whose scale is subnormal: rare, and each with a rule of its own.
  if (!(scale >= 0x1p-126f) || row.size() < kLanes) {
    uint64_t none = 0;
    EncodeRowsCpu(RowType::kInt8, row, static_cast<uint32_t>(row.size()), out, &none);
    return;
  }
  std::memcpy(out, &scale, sizeof(scale));
  out += sizeof(scale);
  const __m256 scales = _mm256_set1_ps(scale);
  const auto eight = [&](size_t at) {
    // Rounds to the nearest, ties to even: the processor's default mode.
    const __m256i steps = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(row.data() + at), scales));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(steps), _mm256_extracti128_si256(steps, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + at), _mm_packs_epi16(words, words));
  };
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) eight(i);
  if (i < row.size()) eight(row.size() - kLanes);  // Some are written twice.
}

void DecodeInt8(const char* in, std::span<float> row) {
  float scale;
  std::memcpy(&scale, in, sizeof(scale));
  in += sizeof(scale);
  const __m256 scales = _mm256_set1_ps(scale);
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    const __m256i steps = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i)));
    _mm256_storeu_ps(row.data() + i, _mm256_mul_ps(scales, _mm256_cvtepi32_ps(steps)));
  }
  for (; i < row.size(); ++i) row[i] = scale * static_cast<float>(static_cast<int8_t>(in[i]));
}

template <typename Vector>
void DecodeHalves(RowType type, const char* in, std::span<float> values, Vector vector) {
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    _mm256_storeu_ps(values.data() + i, vector(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i))));
  }
  DecodeRowsCpu(type, in + 2 * i, values.size() - i, 1, values.subspan(i));
}

}  // namespace

void EncodeRows(RowType type, std::span<const float> rows, uint32_t dim, char* out, uint64_t* saturated) {
  DCHECK(dim > 0 && rows.size() % dim == 0);
  switch (type) {
    case RowType::kFloat32:
      if (!rows.empty()) std::memcpy(out, rows.data(), rows.size_bytes());
      return;
    case RowType::kBfloat16:
      return EncodeHalves<RowType::kBfloat16, kBfloat16Over>(rows, out, saturated, Bfloat16Of);
    case RowType::kFloat16:
      return EncodeHalves<RowType::kFloat16, kFloat16Over>(rows, out, saturated, Float16Of);
    case RowType::kInt8:
      for (size_t at = 0; at < rows.size(); at += dim, out += RowWireBytes(type, dim)) {
        EncodeInt8(rows.subspan(at, dim), out);
      }
      return;
  }
}

void DecodeRows(RowType type, const char* in, uint64_t n, uint32_t dim, std::span<float> rows) {
  CHECK_EQ(rows.size(), n * dim);
  switch (type) {
    case RowType::kFloat32:
      if (!rows.empty()) std::memcpy(rows.data(), in, rows.size_bytes());
      return;
    case RowType::kBfloat16:
      return DecodeHalves(type, in, rows, [](__m128i halves) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
      });
    case RowType::kFloat16:
      return DecodeHalves(type, in, rows, [](__m128i halves) { return _mm256_cvtph_ps(halves); });
    case RowType::kInt8:
      for (uint64_t row = 0; row < n; ++row, in += RowWireBytes(type, dim)) {
        DecodeInt8(in, rows.subspan(row * dim, dim));
      }
      return;
  }
}

uint64_t EncodeStochastic(RowType type, std::span<const float> row, uint64_t rounding_seed, char* out) {
  constexpr int32_t kFloat16Least = 0x38800000, kFloat16Most = 0x477fe000;  // 2^-14, 65504.
  constexpr int32_t kBfloat16Most = 0x7f7f0000;
  if (type == RowType::kBfloat16) {
    return EncodeRandomly<RowType::kBfloat16, 0, kBfloat16Most>(row, rounding_seed, out, Bfloat16Stochastic);
  }
  return EncodeRandomly<RowType::kFloat16, kFloat16Least, kFloat16Most>(row, rounding_seed, out, Float16Stochastic);
}

}  // namespace sparrow

#else

namespace sparrow {

void EncodeRows(RowType type, std::span<const float> rows, uint32_t dim, char* out, uint64_t* saturated) {
  EncodeRowsCpu(type, rows, dim, out, saturated);
}

void DecodeRows(RowType type, const char* in, uint64_t n, uint32_t dim, std::span<float> rows) {
  DecodeRowsCpu(type, in, n, dim, rows);
}

uint64_t EncodeStochastic(RowType type, std::span<const float> row, uint64_t rounding_seed, char* out) {
  return EncodeStochasticCpu(type, row, rounding_seed, out);
}

}  // namespace sparrow

#endif
