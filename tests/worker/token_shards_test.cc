#include "worker/token_shards.h"

#include <filesystem>
#include <numeric>

#include "tests/worker/input_test_support.h"
#include "tests/worker/token_files.h"

namespace sparrow {
namespace {

TokenShardsOptions OptionsFor(const TempFiles& files, const std::vector<std::string>& paths) {
  TokenShardsOptions options;
  options.data_root = files.root();
  for (const std::string& path : paths) options.source.add_path(path);
  return options;
}

std::vector<uint16_t> AllOf(const TokenShards& shards) {
  std::vector<uint16_t> tokens(shards.tokens());
  const absl::Status status = shards.Read(0, tokens);
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

TEST(TokenShards, FilesOfBothFormatsAreOneSequence) {
  const TempFiles files;
  files.Write("a.bin", HeadedTokens(CountUp(10, 5)));
  files.Write("b0.bin", PlainTokens(CountUp(15, 1)));
  files.Write("b1.bin", HeadedTokens(CountUp(16, 1000)));
  files.Write("c.bin", PlainTokens(CountUp(1016, 7)));
  auto shards = TokenShards::Open(OptionsFor(files, {"a.bin", "b?.bin", "c.bin"}));
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ((*shards)->files().size(), 4u);
  EXPECT_EQ((*shards)->tokens(), 1013u);
  EXPECT_EQ(AllOf(**shards), CountUp(10, 1013));
  // Every part of a few tokens, over the files' edges too.
  for (uint64_t first = 0; first < 30; ++first) {
    for (uint64_t count = 0; count < 9; ++count) {
      std::vector<uint16_t> part(count);
      ASSERT_TRUE((*shards)->Read(first, part).ok());
      EXPECT_EQ(part, CountUp(static_cast<uint16_t>(10 + first), count)) << first << " " << count;
      (*shards)->WillRead(first, count);
    }
  }
}

TEST(TokenShards, ARangeIsOfTheTokensOfAllFiles) {
  const TempFiles files;
  files.Write("a.bin", PlainTokens(CountUp(0, 60)));
  files.Write("b.bin", HeadedTokens(CountUp(60, 41)));
  TokenShardsOptions options = OptionsFor(files, {"a.bin", "b.bin"});
  options.source.mutable_rows()->set_take_share(0.9);
  auto train = TokenShards::Open(options);
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ(AllOf(**train), CountUp(0, 91)) << "floor(90.9 + 0.5)";
  options.source.mutable_rows()->clear_take_share();
  options.source.mutable_rows()->set_skip_share(0.9);
  auto test = TokenShards::Open(options);
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ(AllOf(**test), CountUp(91, 10));
  options.source.mutable_rows()->clear_skip_share();
  options.source.mutable_rows()->set_skip_rows(101);
  EXPECT_ERROR(TokenShards::Open(options).status(), kInvalidArgument, "a.bin", "skip_rows: 101", "leaves no row",
               "of 101 rows");
}

struct Refused {
  const char* name;
  std::string bytes;
  std::vector<std::string> says;
};

class TokenShardsRefuse : public testing::TestWithParam<Refused> {};

TEST_P(TokenShardsRefuse, AFileThatIsNotWhatItShouldBe) {
  const TempFiles files;
  files.Write("x.bin", GetParam().bytes);
  const absl::Status status = TokenShards::Open(OptionsFor(files, {"x.bin"})).status();
  EXPECT_ERROR(status, kInvalidArgument, "x.bin: ");
  for (const std::string& part : GetParam().says) {
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(part));
  }
}

const Refused kRefused[] = {
    {"Empty", "", {"is empty, expected tokens"}},
    {"Odd", "abc", {"has 3 bytes, expected an even number"}},
    {"OneByte", "a", {"has 1 bytes, expected an even number"}},
    {"HeaderCut", TokenHeader(5).substr(0, 1000), {"has 1000 bytes, expected llm.c's header of 1024"}},
    {"MagicAlone", TokenHeader(5).substr(0, 4), {"has 4 bytes, expected llm.c's header of 1024"}},
    {"Truncated",
     HeadedTokens(CountUp(0, 10)).substr(0, 1040),
     {"has 1040 bytes, expected 1044: 1024 of header + 2 x 10 tokens", "cut off"}},
    {"TooLong", HeadedTokens(CountUp(0, 10)) + "xx", {"has 1046 bytes, expected 1044"}},
    {"NoTokens", TokenHeader(0), {"has 0 tokens by its header, expected 1 to 2147483647"}},
    {"Negative", TokenHeader(0xfffffffe) + "xx", {"has -2 tokens by its header"}},
    {"Version", TokenHeader(1, 2) + "xx", {"has version 2 in its header, expected 1"}},
    {"Llama", TokenHeader(1, 7, 20240801) + "xxxx", {"tokens of 32 bits (uint32)", "20240801", "20240520"}},
    {"Questions", TokenHeader(1, 1, 20240522), {"multiple-choice questions", "20240522"}},
    {"Weights", TokenHeader(3, 3, 20240326), {"a model's weights"}},
    {"Text", std::string("First Citizen:\nBefore we proceed any further, h"), {"expected tokens", "found text"}},
    {"GermanText",
     std::string("B\xc3\xbcrger: Bevor wir weitergehen, h\xc3\xb6rt mich. \xe2\x80\x94").substr(0, 50),
     {"found text", "sparrowctl data tokenize"}},
    {"Npy", std::string("\x93NUMPY\x01\x00", 8), {".npy"}},
    {"ByteOrder", TokenHeader(5, 1, __builtin_bswap32(kTokenFileMagic)), {"the other byte order"}},
    {"Uint32",
     std::string(AsBytes(std::span<const uint32_t>(
         std::vector<uint32_t>{1,  20, 300, 4000, 5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17,
                               18, 19, 20,  21,   22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33}))),
     {"numbers of 32 bits"}},
    {"Parquet", std::string("PAR1\x20\x00", 6), {"Parquet"}},
    {"Picture", std::string("\x89PNG\r\n\x1a\n", 8), {"a picture"}},
    {"Zip", std::string("PK\x03\x04\x00\x00", 6), {"zip archive"}},
};

INSTANTIATE_TEST_SUITE_P(Files, TokenShardsRefuse, testing::ValuesIn(kRefused),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(TokenShards, SmallTokensAreNotTakenForText) {
  const TempFiles files;
  // Bytes as tokens: each has a zero behind it. And few tokens that happen to be letters.
  std::vector<uint16_t> bytes;
  for (const char c : std::string("First Citizen:\nBefore we proceed any further, hear me speak.")) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  files.Write("bytes.bin", PlainTokens(bytes));
  files.Write("few.bin", "ab");
  EXPECT_TRUE(TokenShards::Open(OptionsFor(files, {"bytes.bin", "few.bin"})).ok());
  // Nor zeros for numbers of 32 bits, nor one token between them.
  std::vector<uint16_t> zeros(200, 0);
  files.Write("zeros.bin", PlainTokens(zeros));
  zeros[31] = 1;
  for (size_t i = 0; i < zeros.size(); i += 2) zeros[i] = 9;
  files.Write("nearly.bin", PlainTokens(zeros));
  EXPECT_TRUE(TokenShards::Open(OptionsFor(files, {"zeros.bin", "nearly.bin"})).ok());
}

TEST(TokenShards, NamesThatAreNoFilesAreRefused) {
  const TempFiles files;
  files.Write("a.bin", PlainTokens({1, 2, 3}));
  files.Write("a.bin.gz", PlainTokens({1, 2, 3}));
  std::filesystem::create_directory(files.Path("shards"));
  EXPECT_ERROR(TokenShards::Open(OptionsFor(files, {"b.bin"})).status(), kNotFound, "b.bin", "--data-root");
  EXPECT_ERROR(TokenShards::Open(OptionsFor(files, {"*.tokens"})).status(), kNotFound, "*.tokens: no file matches");
  EXPECT_ERROR(TokenShards::Open(OptionsFor(files, {"shards"})).status(), kInvalidArgument, "is a directory", "/*");
  EXPECT_ERROR(TokenShards::Open(OptionsFor(files, {"a.bin", "a.*"})).status(), kInvalidArgument, "named twice");
  EXPECT_ERROR(TokenShards::Open(OptionsFor(files, {"a.bin.gz"})).status(), kInvalidArgument, "named .gz");
  EXPECT_ERROR(TokenShards::Open(OptionsFor(files, {"/etc/passwd"})).status(), kPermissionDenied, "outside the root");
  EXPECT_ERROR(TokenShards::Open(OptionsFor(files, {"../x"})).status(), kPermissionDenied, "outside the root");
}

// Over more than one block of those that threads check, in two files; the bad token in the second.
TEST(TokenShards, ATokenThatTheVocabularyDoesNotHaveIsNamedWhateverTheThreads) {
  const TempFiles files;
  std::vector<uint16_t> tokens(3'000'000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i % 65);
  files.Write("a.bin", PlainTokens(tokens));
  tokens[1'234'567] = 65;
  tokens[1'234'568] = 999;
  tokens[2'999'999] = 70;
  files.Write("b.bin", HeadedTokens(tokens));
  TokenShardsOptions options = OptionsFor(files, {"a.bin", "b.bin"});
  options.vocabulary = 65;
  for (const int threads : {1, 2, 5}) {
    options.threads = threads;
    EXPECT_ERROR(TokenShards::Open(options).status(), kInvalidArgument, "b.bin: token 1234567 is 65",
                 "less than 65 (model.gpt2.vocabulary)");
  }
  options.vocabulary = 1000;
  EXPECT_TRUE(TokenShards::Open(options).ok());
  options.vocabulary = 66;
  EXPECT_ERROR(TokenShards::Open(options).status(), kInvalidArgument, "token 1234568 is 999");
  // What the range leaves out is not looked at.
  options.source.mutable_rows()->set_take_rows(4'234'568);
  EXPECT_TRUE(TokenShards::Open(options).ok());
  options.source.mutable_rows()->set_take_rows(4'234'569);
  EXPECT_FALSE(TokenShards::Open(options).ok());
}

TEST(TokenShards, EachTokenIsCheckedByOneWorker) {
  const TempFiles files;
  for (const size_t bad : {0u, 1u, 33u, 66u, 99u}) {
    std::vector<uint16_t> tokens(100);
    tokens[bad] = 7;
    files.Write("a.bin", PlainTokens(tokens));
    for (const uint32_t workers : {1u, 2u, 3u, 7u, 200u}) {
      TokenShardsOptions options = OptionsFor(files, {"a.bin"});
      options.vocabulary = 7;
      options.workers = workers;
      size_t refused = 0;
      for (options.rank = 0; options.rank < workers; ++options.rank) refused += TokenShards::Open(options).ok() ? 0 : 1;
      EXPECT_EQ(refused, 1u) << bad << " of " << workers;
    }
  }
}

TEST(TokenShards, AFileThatChangesWhileItIsInUseIsAnError) {
  const TempFiles files;
  files.Write("a.bin", PlainTokens(CountUp(0, 100)));
  TokenShardsOptions options = OptionsFor(files, {"a.bin"});
  options.vocabulary = 100;
  auto shards = TokenShards::Open(options);
  ASSERT_TRUE(shards.ok()) << shards.status();
  std::vector<uint16_t> tokens(10);
  files.Write("a.bin", PlainTokens(CountUp(1, 100)));
  EXPECT_ERROR((*shards)->Read(90, tokens), kInvalidArgument, "a.bin: token 99 is 100");
  std::filesystem::resize_file(files.Path("a.bin"), 190);
  EXPECT_ERROR((*shards)->Read(90, tokens), kDataLoss, "a.bin: ends at byte 190", "100 tokens when it was opened");
}

TEST(TokenShards, OpeningCanBeStopped) {
  const TempFiles files;
  files.Write("a.bin", PlainTokens(CountUp(0, 100)));
  TokenShardsOptions options = OptionsFor(files, {"a.bin"});
  options.stop = [] { return true; };
  EXPECT_ERROR(TokenShards::Open(options).status(), kCancelled, "a.bin");
}

TEST(TokenShards, OptionsOutOfTheirBoundsAreRefused) {
  const TempFiles files;
  files.Write("a.bin", PlainTokens({1, 2}));
  TokenShardsOptions options = OptionsFor(files, {"a.bin"});
  options.vocabulary = 65537;
  EXPECT_ERROR(TokenShards::Open(options).status(), kInvalidArgument, "vocabulary is 65537");
  options = OptionsFor(files, {"a.bin"});
  options.rank = 1;
  EXPECT_ERROR(TokenShards::Open(options).status(), kInvalidArgument, "rank is 1 of 1");
}

}  // namespace
}  // namespace sparrow
