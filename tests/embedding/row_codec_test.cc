// The wire's numbers against a table of all values of each 16-bit type, made here by ldexp, and against double.

#include "embedding/row_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace sparrow {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kFloatMax = std::numeric_limits<float>::max();

// The value of a 16-bit pattern with this many bits of exponent.
double ValueOf(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? std::nan("") : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

struct Half {
  RowType type;
  int exponent_bits;
  double largest;
  std::vector<double> magnitudes;  // Of the patterns 0 to the largest finite one, ascending.

  Half(RowType type, int exponent_bits, double largest) : type(type), exponent_bits(exponent_bits), largest(largest) {
    for (uint32_t bits = 0; std::isfinite(ValueOf(static_cast<uint16_t>(bits), exponent_bits)); ++bits) {
      magnitudes.push_back(ValueOf(static_cast<uint16_t>(bits), exponent_bits));
    }
  }

  // The nearest pattern by distance in double (exact: floats have 24 bits); *saturated says whether it is the last and
  // the value is half a unit or more beyond.
  uint16_t Nearest(float value, bool* saturated) const {
    const double magnitude = std::fabs(static_cast<double>(value));
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const auto above = std::upper_bound(magnitudes.begin(), magnitudes.end(), magnitude);
    const size_t below = static_cast<size_t>(above - magnitudes.begin()) - 1;
    *saturated = false;
    if (above == magnitudes.end()) {
      const double unit = magnitudes[below] - magnitudes[below - 1];
      *saturated = magnitude - magnitudes[below] >= unit / 2;
      return static_cast<uint16_t>(sign | below);
    }
    const double down = magnitude - magnitudes[below], up = *above - magnitude;
    const bool go_up = up < down || (up == down && below % 2 == 1);
    return static_cast<uint16_t>(sign | (below + (go_up ? 1 : 0)));
  }
};

const std::vector<Half>& Halves() {
  static const auto& halves = *new std::vector<Half>{
      {RowType::kBfloat16, 8, std::ldexp(255, 120)},
      {RowType::kFloat16, 5, 65504},
  };
  return halves;
}

// Through both codecs, which must agree.
std::string Encode(RowType type, const std::vector<float>& rows, uint32_t dim, uint64_t* saturated) {
  const size_t bytes = rows.size() / dim * RowWireBytes(type, dim);
  // An odd address, and a byte behind that must stay as it is.
  std::string fast(bytes + 2, '\x5a'), plain(bytes + 2, '\x5a');
  uint64_t fast_saturated = 0;
  *saturated = 0;
  EncodeRows(type, rows, dim, fast.data() + 1, &fast_saturated);
  EncodeRowsCpu(type, rows, dim, plain.data() + 1, saturated);
  EXPECT_EQ(fast_saturated, *saturated);
  EXPECT_TRUE(fast == plain);
  EXPECT_EQ(fast.back(), '\x5a');
  return plain.substr(1, bytes);
}

// Bits, so that NaNs compare.
std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), 4 * values.size());
  return bits;
}

std::vector<float> Decode(RowType type, const std::string& bytes, uint32_t dim) {
  const uint64_t n = bytes.size() / RowWireBytes(type, dim);
  const std::string shifted = "x" + bytes;
  std::vector<float> fast(n * dim, -7), plain(n * dim, -7);
  DecodeRows(type, shifted.data() + 1, n, dim, fast);
  DecodeRowsCpu(type, shifted.data() + 1, n, dim, plain);
  EXPECT_TRUE(BitsOf(fast) == BitsOf(plain));
  return plain;
}

std::vector<uint16_t> Words(const std::string& bytes) {
  std::vector<uint16_t> words(bytes.size() / 2);
  std::memcpy(words.data(), bytes.data(), 2 * words.size());
  return words;
}

// What only the exact code for ties, subnormals and the ends gets right.
std::vector<float> AwkwardFloats() {
  std::vector<float> values;
  for (const float value : {0.0f,         1.0f,         65504.0f,        65519.996f,      65520.0f,    65536.0f,
                            0x1p-24f,     0x1p-25f,     0x1.000002p-25f, 0x1.8p-24f,      0x1p-14f,    0x1.ffcp-15f,
                            0x1.ffep-15f, 0x1.fffp-15f, 0x1p-31f,        0x1p-32f,        0x1p-40f,    0x1p-126f,
                            0x1p-127f,    0x1p-149f,    0x1.fep127f,     0x1.fefffep127f, 0x1.ffp127f, kFloatMax,
                            1e15f}) {
    for (const float neighbour : {std::nextafter(value, -1.0f), value, std::nextafter(value, kFloatMax)}) {
      values.push_back(neighbour);
      values.push_back(-neighbour);
    }
  }
  return values;
}

// Every pattern, every value half-way between two neighbours and a step to each side of it; and random bits.
std::vector<float> HardFloats(const Half& half) {
  std::vector<float> values = AwkwardFloats();
  for (size_t i = 0; i + 1 < half.magnitudes.size(); ++i) {
    const float low = static_cast<float>(half.magnitudes[i]);
    const float middle = static_cast<float>((half.magnitudes[i] + half.magnitudes[i + 1]) / 2);
    for (const float value : {low, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kFloatMax)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  std::mt19937 random(11);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = row_type::FloatOfBits(static_cast<uint32_t>(random()));
    if (std::isfinite(value)) values.push_back(value);
  }
  for (int i = 0; i < 500'000; ++i) values.push_back(std::ldexp(static_cast<float>(random()), -(int)(random() % 60)));
  return values;
}

TEST(RowCodec, EveryPatternOfBothHalvesDecodesToItsValueAndEncodesToItself) {
  for (const Half& half : Halves()) {
    std::vector<uint16_t> patterns(1 << 16);
    for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
    const std::string bytes(reinterpret_cast<const char*>(patterns.data()), 2 * patterns.size());
    const std::vector<float> values = Decode(half.type, bytes, 1);
    uint64_t saturated = 0;
    const std::vector<uint16_t> back = Words(Encode(half.type, values, 1, &saturated));
    EXPECT_EQ(saturated, 0u);
    const uint16_t quiet = half.type == RowType::kBfloat16 ? 0x40 : 0x200;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const double expected = ValueOf(patterns[i], half.exponent_bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[i])) << i;
        ASSERT_EQ(back[i], patterns[i] | quiet) << i;
        continue;
      }
      ASSERT_EQ(values[i], expected) << i;
      ASSERT_EQ(std::signbit(values[i]), (patterns[i] & 0x8000) != 0) << i;
      ASSERT_EQ(back[i], patterns[i]);
    }
  }
}

TEST(RowCodec, HalvesAreTheNearestOfAllTiesToEvenAndSaturateInsteadOfOverflowing) {
  for (const Half& half : Halves()) {
    EXPECT_EQ(half.magnitudes.back(), half.largest);
    const std::vector<float> values = HardFloats(half);
    uint64_t saturated = 0, expected_saturated = 0;
    const std::vector<uint16_t> words = Words(Encode(half.type, values, 1, &saturated));
    for (size_t i = 0; i < values.size(); ++i) {
      bool over = false;
      ASSERT_EQ(words[i], half.Nearest(values[i], &over)) << values[i];
      expected_saturated += over ? 1 : 0;
    }
    EXPECT_EQ(saturated, expected_saturated);
    EXPECT_GT(saturated, 0u);
  }
}

TEST(RowCodec, TheEndsOfTheRanges) {
  uint64_t saturated = 0;
  EXPECT_EQ(ToFloat16(65504, &saturated), 0x7bff);
  EXPECT_EQ(ToFloat16(65519.996f, &saturated), 0x7bff);
  EXPECT_EQ(saturated, 0u);
  EXPECT_EQ(ToFloat16(65520, &saturated), 0x7bff);
  EXPECT_EQ(ToFloat16(-kFloatMax, &saturated), 0xfbff);
  EXPECT_EQ(saturated, 2u);
  EXPECT_EQ(ToFloat16(kInfinity, &saturated), 0x7c00);
  EXPECT_EQ(ToFloat16(-kInfinity, &saturated), 0xfc00);
  EXPECT_EQ(ToFloat16(-0.0f, &saturated), 0x8000);
  EXPECT_EQ(ToFloat16(0x1p-24f, &saturated), 1);
  EXPECT_EQ(ToFloat16(0x1p-25f, &saturated), 0);
  EXPECT_EQ(saturated, 2u);
  EXPECT_EQ(ToBfloat16(0x1.fep127f, &saturated), 0x7f7f);
  EXPECT_EQ(ToBfloat16(0x1.fefffep127f, &saturated), 0x7f7f);
  EXPECT_EQ(saturated, 2u);
  EXPECT_EQ(ToBfloat16(0x1.ffp127f, &saturated), 0x7f7f);
  EXPECT_EQ(ToBfloat16(-kFloatMax, &saturated), 0xff7f);
  EXPECT_EQ(saturated, 4u);
  EXPECT_EQ(ToBfloat16(kInfinity, &saturated), 0x7f80);
  EXPECT_EQ(ToBfloat16(-0.0f, &saturated), 0x8000);
  EXPECT_EQ(saturated, 4u);
}

TEST(RowCodec, VectorsWithNansInfinitiesAndOverflowsAmongThemAgreeWithPlainLoops) {
  std::mt19937 random(3);
  const std::vector<float> bad = {kInfinity,
                                  -kInfinity,
                                  std::numeric_limits<float>::quiet_NaN(),
                                  -std::numeric_limits<float>::quiet_NaN(),
                                  std::numeric_limits<float>::signaling_NaN(),
                                  kFloatMax,
                                  65520.0f};
  for (int round = 0; round < 2'000; ++round) {
    const uint32_t dim = 1 + random() % 70;
    std::vector<float> rows(dim * (1 + random() % 3));
    for (float& value : rows) value = static_cast<float>(random()) / 1e9f;
    for (uint32_t n = random() % 3; n > 0; --n) rows[random() % rows.size()] = bad[random() % bad.size()];
    for (const RowType type : {RowType::kFloat32, RowType::kBfloat16, RowType::kFloat16, RowType::kInt8}) {
      uint64_t saturated = 0;
      Decode(type, Encode(type, rows, dim, &saturated), dim);
    }
  }
}

TEST(RowCodec, AnInt8RowIsOffByHalfItsScaleAtMost) {
  std::mt19937 random(5);
  const std::vector<float> awkward = AwkwardFloats();
  for (int round = 0; round < 20'000; ++round) {
    const uint32_t dim = 1 + random() % 40;
    const int exponent = static_cast<int>(random() % 236) - 110;
    std::vector<float> row(dim);
    for (float& value : row) {
      const double u = static_cast<double>(random()) / 2147483648.0 - 1;
      value = round % 4 == 0 ? awkward[random() % awkward.size()] : static_cast<float>(std::ldexp(u, exponent));
    }
    double largest = 0;
    for (const float value : row) largest = std::max(largest, std::fabs(static_cast<double>(value)));
    uint64_t saturated = 0;
    const std::string bytes = Encode(RowType::kInt8, row, dim, &saturated);
    EXPECT_EQ(saturated, 0u);
    float scale;
    std::memcpy(&scale, bytes.data(), sizeof(scale));
    const bool subnormal = largest / 127 < 0x1p-126;
    ASSERT_NEAR(scale, largest / 127, subnormal ? 0x1p-149 : largest / 127 * 0x1p-22);
    const std::vector<float> decoded = Decode(RowType::kInt8, bytes, dim);
    for (uint32_t i = 0; i < dim; ++i) {
      // The quotient and the product are floats: 2^-17 of a scale. A subnormal scale has lost digits.
      const double bound = subnormal ? 0x1p-126 : scale * (0.5 + 0x1p-15);
      ASSERT_NEAR(decoded[i], row[i], bound) << "scale " << scale;
      ASSERT_TRUE(std::isfinite(decoded[i]));
    }
  }
}

TEST(RowCodec, AnInt8RowThatIsNotFiniteIsNanThroughoutAndZerosStayZeros) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> row(21, 1.5f);
    row[17] = bad;
    uint64_t saturated = 0;
    for (const float value : Decode(RowType::kInt8, Encode(RowType::kInt8, row, 21, &saturated), 21)) {
      ASSERT_TRUE(std::isnan(value));
    }
  }
  uint64_t saturated = 0;
  const std::string zeros = Encode(RowType::kInt8, std::vector<float>(12, -0.0f), 12, &saturated);
  EXPECT_EQ(zeros, std::string(16, '\0'));
}

TEST(RowCodec, RowsOfEveryDimensionStandWithoutGapsAndDoNotDependOnTheirNeighbours) {
  std::mt19937 random(9);
  std::vector<uint32_t> dims = {127, 128, 129, 255, 257, 1000, 1023, 1024, 1025, 2047, 4095, 4096};
  for (uint32_t dim = 1; dim <= 70; ++dim) dims.push_back(dim);
  for (const uint32_t dim : dims) {
    std::vector<float> rows(3 * dim);
    for (float& value : rows) value = static_cast<float>(random()) / 4e9f - 0.5f;
    for (const RowType type : {RowType::kFloat32, RowType::kBfloat16, RowType::kFloat16, RowType::kInt8}) {
      uint64_t saturated = 0;
      const std::string together = Encode(type, rows, dim, &saturated);
      ASSERT_EQ(together.size(), 3 * RowWireBytes(type, dim));
      std::string alone;
      for (int row = 0; row < 3; ++row) {
        alone +=
            Encode(type, std::vector<float>(rows.begin() + row * dim, rows.begin() + (row + 1) * dim), dim, &saturated);
      }
      ASSERT_EQ(together, alone) << dim;
      const std::vector<float> decoded = Decode(type, together, dim);
      const double bound = type == RowType::kFloat32 ? 0 : type == RowType::kFloat16 ? 0x1p-12 : 0x1p-8;
      for (size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(decoded[i], rows[i], bound) << dim;
    }
  }
}

TEST(RowCodec, NothingEncodesToNothing) {
  for (const RowType type : {RowType::kFloat32, RowType::kBfloat16, RowType::kFloat16, RowType::kInt8}) {
    uint64_t saturated = 0;
    EXPECT_EQ(Encode(type, {}, 8, &saturated), "");
    EXPECT_TRUE(Decode(type, "", 8).empty());
  }
}

TEST(RowCodec, WireBytesAsDocumented) {
  EXPECT_EQ(RowWireBytes(RowType::kFloat32, 64), 256u);
  EXPECT_EQ(RowWireBytes(RowType::kBfloat16, 64), 128u);
  EXPECT_EQ(RowWireBytes(RowType::kFloat16, 63), 126u);
  EXPECT_EQ(RowWireBytes(RowType::kInt8, 64), 68u);
}

TEST(RowCodec, StochasticVectorsEqualThePlainLoopBitForBit) {
  std::mt19937_64 random(21);
  const std::vector<float> awkward = AwkwardFloats();
  for (int round = 0; round < 20'000; ++round) {
    std::vector<float> row(1 + random() % 70);
    for (float& value : row) {
      value = static_cast<float>(static_cast<double>(random() % 2'000'000) / 1e6 - 1);
      if (round % 2 == 0 && random() % 8 == 0) value = awkward[random() % awkward.size()];
      if (round % 64 == 0) value = round % 128 == 0 ? kInfinity : -kInfinity;
      if (round % 4 == 1) value = row_type::FloatOfBits(static_cast<uint32_t>(random()));
    }
    for (const RowType type : {RowType::kBfloat16, RowType::kFloat16}) {
      std::string fast(2 * row.size() + 1, '\x5a'), plain = fast;
      const uint64_t seed = random();
      ASSERT_EQ(EncodeStochastic(type, row, seed, fast.data()), EncodeStochasticCpu(type, row, seed, plain.data()));
      ASSERT_TRUE(fast == plain) << round;
    }
  }
}

// With the bits that tables use: over the updates of a row, over rows, and over columns.
TEST(RowCodec, RoundingBitsAreUnbiasedAlongEveryAxis) {
  constexpr int kRounds = 100'000;
  const float value = 1 + 0.3f * 0x1p-7f;
  const auto mean = [&](auto bits) {
    uint64_t saturated = 0;
    double sum = 0;
    for (int i = 0; i < kRounds; ++i) sum += FromBfloat16(ToBfloat16Stochastic(value, bits(i), &saturated));
    return sum / kRounds;
  };
  const double bound = 5 * 0x1p-7 * std::sqrt(0.3 * 0.7 / kRounds);
  EXPECT_NEAR(mean([](int i) { return RoundingBits(RoundingSeed(3, 17, i), 5); }), value, bound);
  EXPECT_NEAR(mean([](int i) { return RoundingBits(RoundingSeed(3, i, 1), 5); }), value, bound);
  EXPECT_NEAR(mean([](int i) { return RoundingBits(RoundingSeed(i, 17, 1), 0); }), value, bound);
  EXPECT_NEAR(mean([](int i) { return RoundingBits(RoundingSeed(3, 17, 1), static_cast<uint32_t>(i)); }), value, bound);
}

// Every value between two neighbours goes up with the probability of its distance, so the mean is the value.
TEST(RowCodec, StochasticRoundingIsUnbiased) {
  std::mt19937 random(13);
  for (const float value : {1.0f, 1.001f, -0.3f, 1e-5f, 3e-6f, 1.7e-7f, -3e-8f, 1e-9f, 5000.3f, 0x1.2345p-20f}) {
    for (const Half& half : Halves()) {
      constexpr int kRounds = 400'000;
      double sum = 0, low = kFloatMax, high = -kFloatMax;
      uint64_t saturated = 0;
      for (int i = 0; i < kRounds; ++i) {
        const uint32_t bits = static_cast<uint32_t>(random());
        const double rounded = half.type == RowType::kBfloat16
                                   ? FromBfloat16(ToBfloat16Stochastic(value, bits, &saturated))
                                   : FromFloat16(ToFloat16Stochastic(value, bits, &saturated));
        sum += rounded;
        low = std::min(low, rounded);
        high = std::max(high, rounded);
      }
      EXPECT_EQ(saturated, 0u);
      const double unit = high - low;
      EXPECT_LE(low, value);
      EXPECT_GE(high, value);
      // Five standard deviations of the mean of a coin with this probability.
      const double p = unit > 0 ? (value - low) / unit : 0;
      const double deviation = unit * std::sqrt(p * (1 - p) / kRounds);
      EXPECT_NEAR(sum / kRounds, value, 5 * deviation + 1e-15) << static_cast<int>(half.type) << " " << value;
    }
  }
}

TEST(RowCodec, StochasticRoundingKeepsValuesThatNeedNoneAndTakesANeighbourOtherwise) {
  std::mt19937 random(17);
  for (const Half& half : Halves()) {
    const auto round = [&](float value, uint64_t* saturated) {
      const uint32_t bits = static_cast<uint32_t>(random());
      return half.type == RowType::kBfloat16 ? ToBfloat16Stochastic(value, bits, saturated)
                                             : ToFloat16Stochastic(value, bits, saturated);
    };
    uint64_t saturated = 0;
    for (size_t i = 0; i < half.magnitudes.size(); ++i) {
      ASSERT_EQ(round(static_cast<float>(half.magnitudes[i]), &saturated), i);
      ASSERT_EQ(round(-static_cast<float>(half.magnitudes[i]), &saturated), i | 0x8000);
    }
    EXPECT_EQ(saturated, 0u);
    for (int i = 0; i < 1'000'000; ++i) {
      const float value = row_type::FloatOfBits(static_cast<uint32_t>(random()));
      if (!std::isfinite(value)) continue;
      const double rounded = ValueOf(round(value, &saturated), half.exponent_bits);
      ASSERT_TRUE(std::isfinite(rounded));
      const double magnitude = std::min(std::fabs(static_cast<double>(value)), half.largest);
      const auto above = std::upper_bound(half.magnitudes.begin(), half.magnitudes.end(), magnitude);
      ASSERT_TRUE(std::fabs(rounded) == *(above - 1) ||
                  (above != half.magnitudes.end() && std::fabs(rounded) == *above))
          << value << " became " << rounded;
      ASSERT_EQ(std::signbit(rounded), std::signbit(value));
    }
    if (half.type == RowType::kFloat16) {
      EXPECT_GT(saturated, 0u);
    }
    saturated = 0;
    EXPECT_EQ(round(kFloatMax, &saturated) & 0x7fff, half.magnitudes.size() - 1);
    EXPECT_LE(saturated, 1u);
    saturated = 0;
    EXPECT_EQ(ValueOf(round(-kInfinity, &saturated), half.exponent_bits), -half.largest);
    EXPECT_EQ(saturated, 1u);
    EXPECT_TRUE(std::isnan(ValueOf(round(std::nanf(""), &saturated), half.exponent_bits)));
  }
}

}  // namespace
}  // namespace sparrow
