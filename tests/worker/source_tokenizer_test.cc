#include "worker/source_tokenizer.h"

#include "absl/strings/str_cat.h"
#include "tests/worker/input_test_support.h"
#include "tests/worker/token_files.h"

namespace sparrow {
namespace {

std::string OfCharacters(uint32_t vocabulary) {
  return absl::StrCat(R"({"format":"sparrow-tokenizer","version":1,"kind":"characters","vocabulary":)", vocabulary,
                      "}");
}

TEST(SourceTokenizer, IsFoundBesideAFileOrItsShards) {
  const TempFiles files;
  EXPECT_FALSE(FindSourceTokenizer({files.Path("a.bin"), files.Path("web_000000.bin")}).value().has_value());
  files.Write("a.bin.tokenizer.json", OfCharacters(65));
  files.Write("web.bin.tokenizer.json", OfCharacters(65));
  const auto of_file = FindSourceTokenizer({files.Path("b.bin"), files.Path("a.bin")}).value();
  ASSERT_TRUE(of_file.has_value());
  EXPECT_EQ(of_file->path, files.Path("a.bin.tokenizer.json"));
  EXPECT_EQ(of_file->vocabulary, 65u);
  const auto of_shards = FindSourceTokenizer({files.Path("web_000000.bin"), files.Path("web_000001.bin")}).value();
  ASSERT_TRUE(of_shards.has_value());
  EXPECT_EQ(of_shards->path, files.Path("web.bin.tokenizer.json"));
  EXPECT_TRUE(CheckSameTokenizer(of_file, of_shards).ok());
  EXPECT_TRUE(CheckSameTokenizer(of_file, std::nullopt).ok());
  for (const char* other : {"web_00000.bin", "web_00000x.bin", "web000000.bin", "_000000.bin", ".bin"}) {
    EXPECT_FALSE(FindSourceTokenizer({files.Path(other)}).value().has_value()) << other;
  }
}

TEST(SourceTokenizer, TwoThatDifferAreRefused) {
  const TempFiles files;
  files.Write("a.bin.tokenizer.json", OfCharacters(65));
  files.Write("b.bin.tokenizer.json", OfCharacters(66));
  EXPECT_ERROR(FindSourceTokenizer({files.Path("a.bin"), files.Path("b.bin")}).status(), kInvalidArgument,
               "b.bin.tokenizer.json: is another tokenizer (of 66 tokens)", "a.bin.tokenizer.json (of 65)");
  const auto a = FindSourceTokenizer({files.Path("a.bin")}).value();
  const auto b = FindSourceTokenizer({files.Path("b.bin")}).value();
  EXPECT_ERROR(CheckSameTokenizer(a, b), kInvalidArgument, "b.bin.tokenizer.json", "a.bin.tokenizer.json");
}

TEST(SourceTokenizer, AFileThatIsNoneIsRefused) {
  const TempFiles files;
  for (const char* text : {"", "[]", "{}", "{\"format\":\"other\"}", "not JSON"}) {
    files.Write("a.bin.tokenizer.json", text);
    EXPECT_ERROR(FindSourceTokenizer({files.Path("a.bin")}).status(), kInvalidArgument,
                 "a.bin.tokenizer.json: is not a tokenizer's file");
  }
  for (const char* vocabulary : {"0", "65537", "-1", "\"65\"", "6.5", "null"}) {
    files.Write("a.bin.tokenizer.json",
                absl::StrCat(R"({"format":"sparrow-tokenizer","vocabulary":)", vocabulary, "}"));
    EXPECT_ERROR(FindSourceTokenizer({files.Path("a.bin")}).status(), kInvalidArgument,
                 "a.bin.tokenizer.json: vocabulary is ", "expected 1 to 65536");
  }
}

TEST(SourceTokenizer, AModelHasItsVocabularyOrThatPadded) {
  const auto fits = [](uint32_t tokenizer, uint32_t model) {
    return CheckVocabulary({.path = "a.json", .vocabulary = tokenizer, .hash = 0}, model).ok();
  };
  EXPECT_TRUE(fits(50257, 50257));
  EXPECT_TRUE(fits(50257, 50304));
  EXPECT_TRUE(fits(65, 65));
  EXPECT_TRUE(fits(65, 128));
  EXPECT_TRUE(fits(60, 64));
  EXPECT_TRUE(fits(60, 128));
  EXPECT_TRUE(fits(256, 256));
  EXPECT_FALSE(fits(256, 320));
  EXPECT_FALSE(fits(65, 100));
  EXPECT_FALSE(fits(65, 192));
  EXPECT_FALSE(fits(65, 64));
  EXPECT_ERROR(CheckVocabulary({.path = "a.json", .vocabulary = 65, .hash = 0}, 100), kInvalidArgument,
               "model.gpt2.vocabulary is 100", "has 65 (a.json)", "expected 65 or 128, padded");
  EXPECT_ERROR(CheckVocabulary({.path = "a.json", .vocabulary = 256, .hash = 0}, 257), kInvalidArgument,
               "model.gpt2.vocabulary is 257", "has 256 (a.json); expected 256");
}

}  // namespace
}  // namespace sparrow
