#include "worker/number_parser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "worker/dense_transform.h"

namespace sparrow {
namespace {

TEST(NumberParser, EightHexDigitsAgreeWithAByteWiseReferenceOnRandomBytes) {
  constexpr uint64_t kSeed = 3;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const std::string alphabet = "0123456789abcdefABCDEF";
  int valid = 0;
  for (int i = 0; i < 200000; ++i) {
    char text[8];
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    if (i % 2 == 0) text[random() % 8] = static_cast<char>(random());
    uint64_t expected = 0;
    bool hex = true;
    for (const char c : text) {
      const size_t digit = alphabet.find(c);
      hex = hex && digit != std::string::npos;
      expected = expected * 16 + (digit < 16 ? digit : digit - 6);
    }
    uint64_t value = 0;
    ASSERT_EQ(ParseEightHexDigits(text, &value), hex) << std::string(text, 8);
    if (!hex) continue;
    ASSERT_EQ(value, expected) << std::string(text, 8);
    ++valid;
  }
  EXPECT_GT(valid, 90000);
}

TEST(NumberParser, EveryByteAtEveryPlaceOfAHexWordIsJudgedAlone) {
  for (int byte = 0; byte < 256; ++byte) {
    for (int at = 0; at < 8; ++at) {
      char text[8];
      std::memset(text, 'f', 8);
      text[at] = static_cast<char>(byte);
      uint64_t value;
      EXPECT_EQ(ParseEightHexDigits(text, &value), byte < 128 && std::isxdigit(byte) != 0) << byte << " at " << at;
    }
  }
}

TEST(NumberParser, IntegerIdsCoverAllSixtyFourBitsAndNothingElse) {
  uint64_t id;
  const std::pair<const char*, uint64_t> right[] = {{"0", 0},
                                                    {"007", 7},
                                                    {"-0", 0},
                                                    {"18446744073709551615", ~uint64_t{0}},
                                                    {"9223372036854775808", uint64_t{1} << 63},
                                                    {"-1", ~uint64_t{0}},
                                                    {"-9223372036854775808", uint64_t{1} << 63},
                                                    {"1.0", 1},
                                                    {"1.000", 1},
                                                    {"-3.0", ~uint64_t{0} - 2},
                                                    {"10.0", 10}};
  for (const auto& [text, expected] : right) {
    ASSERT_TRUE(ParseIntegerId(text, &id)) << text;
    EXPECT_EQ(id, expected) << text;
  }
  for (const char* text : {"", "-", "+1", "1.", ".0", "1.5", "1.0.0", "0x10", "1e3", " 1", "1 ", "18446744073709551616",
                           "-9223372036854775809", "99999999999999999999999", "12a", "--1", "\xe9"}) {
    EXPECT_FALSE(ParseIntegerId(text, &id)) << text;
  }
  EXPECT_FALSE(ParseIntegerId(absl::string_view("1\0", 2), &id));
}

TEST(NumberParser, HexIdsHaveOneToSixteenDigits) {
  uint64_t id;
  ASSERT_TRUE(ParseHexId("fFfFfFfFfFfFfFfF", &id));
  EXPECT_EQ(id, ~uint64_t{0});
  ASSERT_TRUE(ParseHexId("a", &id));
  EXPECT_EQ(id, 10u);
  for (const char* text : {"", "0x1", "g", "-1", "00000000000000001", "1.0"})
    EXPECT_FALSE(ParseHexId(text, &id)) << text;
}

TEST(NumberParser, DecimalsAreFiniteAndFitAFloat) {
  double value;
  for (const auto& [text, expected] :
       {std::pair{"1.5", 1.5}, {"-2", -2.0}, {"1e3", 1000.0}, {".5", 0.5}, {"5.", 5.0}}) {
    ASSERT_TRUE(ParseDecimal(text, &value)) << text;
    EXPECT_EQ(value, expected);
  }
  for (const char* text : {"", "nan", "inf", "-inf", "1e39", "1e400", "+1", "1,5", "0x10", "1 ", "abc", "1.2.3"}) {
    EXPECT_FALSE(ParseDecimal(text, &value)) << text;
  }
}

TEST(NumberParser, LabelsAreZeroOrOne) {
  float label = -1;
  ASSERT_TRUE(ParseLabel("0.0", &label));
  EXPECT_EQ(label, 0);
  ASSERT_TRUE(ParseLabel("1.000", &label));
  EXPECT_EQ(label, 1);
  for (const char* text : {"", "2", "-1", "0.5", "01", "true", "1.", ".0"})
    EXPECT_FALSE(ParseLabel(text, &label)) << text;
}

// Distance in representable floats.
int64_t Ulps(float a, float b) {
  int32_t x;
  int32_t y;
  std::memcpy(&x, &a, 4);
  std::memcpy(&y, &b, 4);
  return std::abs(int64_t{x} - y);
}

TEST(DenseTransform, Log1pIsWithinOneUlpOfTheExactValue) {
  const float* table = Log1pTable().data();
  for (uint64_t x = 0; x < 100000; ++x) {
    ASSERT_LE(Ulps(Log1pOf(x, table), static_cast<float>(std::log1p(static_cast<long double>(x)))), 1) << x;
  }
  for (uint64_t x = 1; x < uint64_t{1} << 62; x = x * 3 + 1) {
    ASSERT_LE(Ulps(Log1pOf(x, table), static_cast<float>(std::log1p(static_cast<long double>(x)))), 1) << x;
  }
  for (double x = 1e-30; x < 1e30; x *= 1.7) {
    ASSERT_LE(Ulps(Log1pOf(x), static_cast<float>(std::log1p(static_cast<long double>(x)))), 1) << x;
  }
}

}  // namespace
}  // namespace sparrow
