#include "client/tokenize.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "client/token_writer.h"
#include "tests/worker/input_test_support.h"
#include "tests/worker/token_files.h"
#include "worker/token_shards.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;

class TokenizeTest : public testing::Test {
 protected:
  // The tokens of files under the root.
  std::vector<uint16_t> Tokens(const std::string& pattern) {
    TokenShardsOptions options;
    options.data_root = files_.root();
    options.source.add_path(pattern);
    const auto tokenizer = LoadTokenizer(files_.Path("out.bin.tokenizer.json"));
    CHECK(tokenizer.ok()) << tokenizer.status();
    options.vocabulary = (*tokenizer)->vocabulary();
    auto shards = TokenShards::Open(options);
    CHECK(shards.ok()) << shards.status();
    std::vector<uint16_t> tokens((*shards)->tokens());
    CHECK((*shards)->Read(0, tokens).ok());
    return tokens;
  }

  std::vector<std::string> FilesBut(const std::vector<std::string>& inputs) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(files_.root())) {
      const std::string name = entry.path().filename().string();
      if (std::find(inputs.begin(), inputs.end(), name) == inputs.end()) names.push_back(name);
    }
    return names;
  }

  TokenizeOptions Options(const std::vector<std::string>& inputs) {
    TokenizeOptions options;
    for (const std::string& input : inputs) options.inputs.push_back(files_.Path(input));
    options.out = files_.Path("out.bin");
    return options;
  }

  const TempFiles files_;
};

TEST_F(TokenizeTest, TheCharactersOfSeveralTextsAreOneVocabulary) {
  files_.Write("a.txt", "ba\n");
  files_.Write("b.txt", Gzip("c\u00e9"));
  TokenizeOptions options = Options({"a.txt", "b.txt"});
  const auto characters = DistinctCharacters(options.inputs, nullptr);
  ASSERT_TRUE(characters.ok()) << characters.status();
  EXPECT_THAT(*characters, ElementsAre('\n', 'a', 'b', 'c', 0xe9));
  for (options.end_of_text = false;; options.end_of_text = true) {
    const auto tokenizer = MakeCharacterTokenizer(*characters, options.end_of_text);
    const auto result = TokenizeFiles(options, tokenizer->get(), nullptr);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->bytes, 6u);
    EXPECT_THAT(result->files, ElementsAre(files_.Path("out.bin")));
    if (options.end_of_text) break;
    EXPECT_THAT(Tokens("out.bin"), ElementsAre(2, 1, 0, 3, 4));
    EXPECT_EQ(files_.Read("out.bin"), HeadedTokens({2, 1, 0, 3, 4}));
  }
  EXPECT_THAT(Tokens("out.bin"), ElementsAre(2, 1, 0, 5, 3, 4));
  const auto again = LoadTokenizer(files_.Path("out.bin.tokenizer.json"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->vocabulary(), 6u);
}

// Longer than the blocks that are read, with characters of three bytes over every edge.
TEST_F(TokenizeTest, BlocksLeaveNoSeam) {
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += i % 7 == 0 ? "x" : "\u65e5";
  files_.Write("a.txt", text);
  const TokenizeOptions options = Options({"a.txt"});
  const auto characters = DistinctCharacters(options.inputs, nullptr);
  ASSERT_TRUE(characters.ok()) << characters.status();
  EXPECT_THAT(*characters, ElementsAre('x', 0x65e5));
  const auto result = TokenizeFiles(options, MakeCharacterTokenizer(*characters, false)->get(), nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tokens, 1'000'000u);
  EXPECT_EQ(result->bytes, text.size());
  std::string decoded;
  ASSERT_TRUE((*LoadTokenizer(result->tokenizer_path))->Decode(Tokens("out.bin"), &decoded).ok());
  EXPECT_TRUE(decoded == text);
}

TEST_F(TokenizeTest, ShardsAreOfTheSizeThatIsAskedFor) {
  files_.Write("a.txt", "0123456789");
  TokenizeOptions options = Options({"a.txt"});
  options.shard_tokens = 4;
  const auto result = TokenizeFiles(options, MakeByteTokenizer(false).get(), nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->files,
              ElementsAre(files_.Path("out_000000.bin"), files_.Path("out_000001.bin"), files_.Path("out_000002.bin")));
  EXPECT_EQ(files_.Read("out_000001.bin"), HeadedTokens({'4', '5', '6', '7'}));
  EXPECT_EQ(Tokens("out_*.bin"), CountUp('0', 10));
  EXPECT_EQ(FilesBut({"a.txt"}).size(), 4u) << "three shards and the tokenizer";
  // What an earlier run left would be read beside the new ones.
  std::filesystem::remove(files_.Path("out_000000.bin"));
  EXPECT_ERROR(TokenizeFiles(options, MakeByteTokenizer(false).get(), nullptr).status(), kAlreadyExists,
               "out_000001.bin: is there from an earlier run");
  // A full last shard is not followed by an empty one.
  options.out = files_.Path("more");
  options.shard_tokens = 5;
  const auto full = TokenizeFiles(options, MakeByteTokenizer(false).get(), nullptr);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_THAT(full->files, ElementsAre(files_.Path("more_000000.bin"), files_.Path("more_000001.bin")));
}

TEST_F(TokenizeTest, WhatFailsLeavesNothingAndSaysWhere) {
  files_.Write("a.txt", std::string(3 << 20, 'a') +
                            "\xff"
                            "b");
  files_.Write("b.txt", std::string(3 << 20, 'a') + "b");
  files_.Write("empty.txt", "");
  EXPECT_ERROR(DistinctCharacters(Options({"b.txt", "a.txt"}).inputs, nullptr).status(), kInvalidArgument,
               "a.txt: byte 3145728: what follows is not UTF-8");
  const auto only_a = MakeCharacterTokenizer({'a'}, false);
  for (const uint64_t shard : {0, 1 << 20}) {
    TokenizeOptions options = Options({"b.txt"});
    options.shard_tokens = shard;
    EXPECT_ERROR(TokenizeFiles(options, only_a->get(), nullptr).status(), kInvalidArgument,
                 "b.txt: byte 3145728: character \"b\" (U+0062)");
  }
  EXPECT_ERROR(TokenizeFiles(Options({"none.txt"}), only_a->get(), nullptr).status(), kNotFound, "none.txt");
  EXPECT_ERROR(TokenizeFiles(Options({"b.txt"}), only_a->get(), [] { return true; }).status(), kCancelled, "b.txt");
  TokenizeOptions end = Options({"b.txt"});
  end.end_of_text = true;
  EXPECT_ERROR(TokenizeFiles(end, only_a->get(), nullptr).status(), kInvalidArgument, "no token for the end of a text");
  EXPECT_ERROR(TokenizeFiles(Options({"empty.txt"}), only_a->get(), nullptr).status(), kInvalidArgument,
               "out.bin: there is no token to write");
  EXPECT_THAT(FilesBut({"a.txt", "b.txt", "empty.txt"}), ElementsAre());
}

}  // namespace
}  // namespace sparrow
