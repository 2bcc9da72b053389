#include "client/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "client/gpt2_tokenizer.h"
#include "tests/support/temp_files.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Tokenizer> Characters(const std::set<uint32_t>& characters, bool end_of_text = false) {
  auto tokenizer = MakeCharacterTokenizer(characters, end_of_text);
  CHECK(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(Tokenizer, BytesAreTheirNumbers) {
  const auto tokenizer = MakeByteTokenizer(false);
  EXPECT_EQ(tokenizer->vocabulary(), 256u);
  EXPECT_EQ(tokenizer->end_of_text(), std::nullopt);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  std::vector<uint16_t> tokens;
  size_t used = 0;
  ASSERT_TRUE(tokenizer->Encode(all, false, &tokens, &used).ok());
  EXPECT_EQ(used, 256u);
  for (uint16_t i = 0; i < 256; ++i) EXPECT_EQ(tokens[i], i);
  std::string text;
  ASSERT_TRUE(tokenizer->Decode(tokens, &text).ok());
  EXPECT_EQ(text, all);
  EXPECT_FALSE(tokenizer->Decode(std::vector<uint16_t>{256}, &text).ok());

  const auto with_end = MakeByteTokenizer(true);
  EXPECT_EQ(with_end->vocabulary(), 257u);
  EXPECT_EQ(with_end->end_of_text(), 256);
  text.clear();
  ASSERT_TRUE(with_end->Decode(std::vector<uint16_t>{'a', 256}, &text).ok());
  EXPECT_EQ(text, "a<|endoftext|>");
}

TEST(Tokenizer, CharactersAreInUnicodesOrder) {
  const auto tokenizer = Characters({'b', '\n', 0x1f426, 0xe9, 'a'}, true);
  EXPECT_EQ(tokenizer->vocabulary(), 6u);
  EXPECT_EQ(tokenizer->end_of_text(), 5);
  std::vector<uint16_t> tokens;
  size_t used = 0;
  const std::string written = "ab\u00e9\n\U0001f426";
  ASSERT_TRUE(tokenizer->Encode(written, true, &tokens, &used).ok());
  EXPECT_THAT(tokens, ElementsAre(1, 2, 3, 0, 4));
  std::string text;
  tokens.push_back(5);
  ASSERT_TRUE(tokenizer->Decode(tokens, &text).ok());
  EXPECT_EQ(text, written + "<|endoftext|>");
  EXPECT_FALSE(tokenizer->Decode(std::vector<uint16_t>{6}, &text).ok());
}

TEST(Tokenizer, ACharacterMayComeInParts) {
  const auto tokenizer = Characters({'a', 0x1f426});
  std::vector<uint16_t> tokens;
  size_t used = 0;
  const std::string text =
      "a\U0001f426"
      "a";
  for (size_t end = 1; end < 5; ++end) {
    ASSERT_TRUE(tokenizer->Encode(text.substr(0, end), false, &tokens, &used).ok()) << end;
    EXPECT_EQ(used, 1u) << end;
  }
  tokens.clear();
  ASSERT_TRUE(tokenizer->Encode(text.substr(0, 5), false, &tokens, &used).ok());
  EXPECT_EQ(used, 5u);
  EXPECT_THAT(tokens, ElementsAre(0, 1));
  const absl::Status cut = tokenizer->Encode(text.substr(0, 4), true, &tokens, &used);
  EXPECT_THAT(std::string(cut.message()), HasSubstr("byte 0xf0 is not UTF-8"));
  EXPECT_EQ(used, 1u);
}

TEST(Tokenizer, ACharacterThatItDoesNotHaveIsNamed) {
  const auto tokenizer = Characters({'a', 'b'});
  std::vector<uint16_t> tokens;
  size_t used = 0;
  const absl::Status status = tokenizer->Encode("ab\u00e9", true, &tokens, &used);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("character \"\u00e9\" (U+00E9) is not among the 2"));
  EXPECT_EQ(used, 2u);
}

TEST(Tokenizer, TooManyCharactersAreRefused) {
  std::set<uint32_t> characters;
  for (uint32_t code = 0x10000; code < 0x20000; ++code) characters.insert(code);
  EXPECT_TRUE(MakeCharacterTokenizer(characters, false).ok());
  EXPECT_THAT(std::string(MakeCharacterTokenizer(characters, true).status().message()),
              HasSubstr("65536 different characters, expected at most 65535"));
  EXPECT_FALSE(MakeCharacterTokenizer({}, true).ok());
}

TEST(Tokenizer, EachKindIsReadAsItWasWritten) {
  Gpt2Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.push_back(Gpt2Letter(static_cast<unsigned char>(byte)));
  for (const char* token : {"lo", "low", "<|endoftext|>"}) vocabulary.tokens.emplace_back(token);
  vocabulary.merges = {{"l", "o"}, {"lo", "w"}};
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers.push_back(MakeByteTokenizer(false));
  tokenizers.push_back(MakeByteTokenizer(true));
  tokenizers.push_back(Characters({'l', 'o', 'w', '"', '\\', 0, '\n', 0xe9, 0x2028, 0x1f426}));
  tokenizers.push_back(Characters({'l', 'o', 'w', '"', '\\', 0, '\n', 0xe9, 0x2028, 0x1f426}, true));
  tokenizers.push_back(*MakeGpt2Tokenizer(vocabulary));
  const std::string text = std::string("low\0\"\\\n", 7) + "\u00e9\u2028\U0001f426";
  const TempFiles files;
  for (const auto& tokenizer : tokenizers) {
    files.Write("a.json", tokenizer->ToJson());
    const auto read = LoadTokenizer(files.Path("a.json"));
    ASSERT_TRUE(read.ok()) << read.status() << tokenizer->ToJson();
    EXPECT_EQ((*read)->vocabulary(), tokenizer->vocabulary());
    EXPECT_EQ((*read)->end_of_text(), tokenizer->end_of_text());
    EXPECT_EQ((*read)->ToJson(), tokenizer->ToJson());
    std::vector<uint16_t> tokens, same;
    size_t used = 0;
    ASSERT_TRUE(tokenizer->Encode(text, true, &tokens, &used).ok());
    ASSERT_TRUE((*read)->Encode(text, true, &same, &used).ok());
    EXPECT_EQ(tokens, same);
    std::string decoded;
    ASSERT_TRUE((*read)->Decode(tokens, &decoded).ok());
    EXPECT_EQ(decoded, text);
  }
}

TEST(Tokenizer, AFileThatIsNoTokenizersIsRefused) {
  const TempFiles files;
  const auto refused = [&](const std::string& text) {
    files.Write("a.json", text);
    const absl::Status status = LoadTokenizer(files.Path("a.json")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a.json: "));
    return std::string(status.message());
  };
  EXPECT_THAT(refused("abc"), HasSubstr("is no JSON"));
  EXPECT_THAT(refused(""), HasSubstr("is no JSON"));
  EXPECT_THAT(refused("[1]"), HasSubstr("is not a tokenizer's file"));
  EXPECT_THAT(refused("{\"format\": 5}"), HasSubstr("is not a tokenizer's file"));
  const std::string begin = "{\"format\": \"sparrow-tokenizer\", \"version\": ";
  EXPECT_THAT(refused(begin + "2}"), HasSubstr("has version 2, expected 1"));
  EXPECT_THAT(refused(begin + "1, \"kind\": \"words\"}"), HasSubstr("has kind \"words\""));
  EXPECT_THAT(refused(begin + "1}"), HasSubstr("has kind null"));
  EXPECT_THAT(refused(begin + "1, \"kind\": \"bytes\", \"vocabulary\": 300}"),
              HasSubstr("has vocabulary 300, but 256 tokens"));
  const std::string characters = begin + "1, \"kind\": \"characters\", \"vocabulary\": 2, \"characters\": ";
  EXPECT_THAT(refused(characters + "5}"), HasSubstr("characters is no list of strings"));
  EXPECT_THAT(refused(characters + "[\"a\", 5]}"), HasSubstr("characters[1] is 5, expected a string"));
  EXPECT_THAT(refused(characters + "[\"a\", \"bc\"]}"), HasSubstr("characters[1] is not one character"));
  EXPECT_THAT(refused(characters + "[\"a\", \"\"]}"), HasSubstr("characters[1] is not one character"));
  EXPECT_THAT(refused(characters + "[\"b\", \"a\"]}"), HasSubstr("characters[1] does not come behind"));
  EXPECT_THAT(refused(characters + "[\"a\"]}"), HasSubstr("has vocabulary 2, but 1 tokens"));
  const std::string gpt2 = begin + "1, \"kind\": \"gpt2\", \"vocabulary\": 2, ";
  EXPECT_THAT(refused(gpt2 + "\"tokens\": [], \"merges\": [\"ab\"]}"), HasSubstr("merges[0] is \"ab\""));
  EXPECT_THAT(refused(gpt2 + "\"tokens\": []}"), HasSubstr("merges is no list"));
  EXPECT_THAT(refused(gpt2 + "\"tokens\": [], \"merges\": []}"), HasSubstr("no token for byte 0"));
  EXPECT_EQ(LoadTokenizer(files.Path("none")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sparrow
