#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace sparrow {
namespace {

using namespace std::string_literals;

TEST(Utf8, WholeTextsAreTakenWhole) {
  for (const std::string& text :
       {""s, "plain"s, "\0"s, "caf\xc3\xa9"s, "\xe2\x82\xac"s, "\xf0\x9f\x90\xa6"s,
        "\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"s}) {
    EXPECT_EQ(Utf8PrefixBytes(text), text.size()) << testing::PrintToString(text);
  }
}

TEST(Utf8, ItEndsBeforeTheFirstByteThatDoesNotBelong) {
  for (const std::string& bad : {"\xe9"s, "\x80"s, "\xc0\xaf"s, "\xc1\xbf"s, "\xe0\x9f\xbf"s, "\xed\xa0\x80"s,
                                 "\xf0\x8f\xbf\xbf"s, "\xf4\x90\x80\x80"s, "\xf5\x80\x80\x80"s, "\xff"s, "\xc3"s,
                                 "\xc3x"s, "\xe2\x82"s, "\xe2\x82x"s, "\xf0\x9f\x90"s, "\xf0\x9f\x90x"s}) {
    EXPECT_EQ(Utf8PrefixBytes("ab" + bad), 2u) << testing::PrintToString(bad);
    EXPECT_EQ(Utf8PrefixBytes("\xc3\xa9" + bad + "tail"), 2u) << testing::PrintToString(bad);
  }
}

TEST(Utf8, EveryCharacterIsReadAsItIsWritten) {
  for (uint32_t code = 0; code <= 0x10ffff; ++code) {
    if (code == 0xd800) code = 0xe000;  // Behind the surrogates.
    std::string text;
    AppendUtf8(code, &text);
    ASSERT_EQ(Utf8PrefixBytes(text), text.size()) << code;
    const Utf8Character character = FirstCharacter(text + "x");
    ASSERT_EQ(character.code, code);
    ASSERT_EQ(character.bytes, text.size()) << code;
  }
  EXPECT_EQ(FirstCharacter("\xe2\x82").code, Utf8Character::kNone);
  EXPECT_EQ(FirstCharacter("\xe2\x82").bytes, 1u);
  EXPECT_EQ(FirstCharacter("\xed\xa0\x80").code, Utf8Character::kNone) << "a surrogate";
}

TEST(Utf8, BytesThatDoNotBelongAreWrittenOut) {
  EXPECT_EQ(AsUtf8("caf\xc3\xa9.tsv"), "caf\xc3\xa9.tsv");
  EXPECT_EQ(AsUtf8("caf\xe9.tsv\xff\xfe"), "caf\\xe9.tsv\\xff\\xfe");
  EXPECT_EQ(AsUtf8(""), "");
}

}  // namespace
}  // namespace sparrow
