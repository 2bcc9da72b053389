#include "client/gpt2_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/temp_files.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// All bytes, in the order of their numbers, then what the merges make.
Gpt2Vocabulary Vocabulary(std::vector<std::pair<std::string, std::string>> merges) {
  Gpt2Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.push_back(Gpt2Letter(static_cast<unsigned char>(byte)));
  for (const auto& [left, right] : merges) {
    const std::string made = left + right;
    if (std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), made) == vocabulary.tokens.end()) {
      vocabulary.tokens.push_back(made);
    }
  }
  vocabulary.merges = std::move(merges);
  return vocabulary;
}

std::unique_ptr<Tokenizer> Make(Gpt2Vocabulary vocabulary) {
  auto tokenizer = MakeGpt2Tokenizer(std::move(vocabulary));
  CHECK(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<uint16_t> Encode(Tokenizer* tokenizer, const std::string& text) {
  std::vector<uint16_t> tokens;
  size_t used = 0;
  const absl::Status status = tokenizer->Encode(text, true, &tokens, &used);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(used, text.size());
  return tokens;
}

std::string Decode(const Tokenizer& tokenizer, const std::vector<uint16_t>& tokens) {
  std::string text;
  const absl::Status status = tokenizer.Decode(tokens, &text);
  EXPECT_TRUE(status.ok()) << status;
  return text;
}

std::vector<std::string> Pieces(absl::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t bytes = Gpt2PieceBytes(text, true);
    EXPECT_GT(bytes, 0u);
    if (bytes == 0) break;
    pieces.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return pieces;
}

TEST(Gpt2Letter, PrintableBytesAreThemselvesTheOthersFollow255) {
  EXPECT_EQ(Gpt2Letter('a'), "a");
  EXPECT_EQ(Gpt2Letter('~'), "~");
  EXPECT_EQ(Gpt2Letter(0), "\u0100");
  EXPECT_EQ(Gpt2Letter('\n'), "\u010a");
  EXPECT_EQ(Gpt2Letter(' '), "\u0120");
  EXPECT_EQ(Gpt2Letter(0x7f), "\u0121");
  EXPECT_EQ(Gpt2Letter(0xa0), "\u0142");
  EXPECT_EQ(Gpt2Letter(0xa1), "\u00a1");
  EXPECT_EQ(Gpt2Letter(0xad), "\u0143");
  EXPECT_EQ(Gpt2Letter(0xff), "\u00ff");
}

TEST(Gpt2Pieces, AreTheRegularExpressions) {
  EXPECT_THAT(Pieces("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(Pieces("I've 3 dogs, they're  great!\n\nOK"),
              ElementsAre("I", "'ve", " 3", " dogs", ",", " they", "'re", " ", " great", "!", "\n", "\n", "OK"));
  EXPECT_THAT(Pieces("a \n b"), ElementsAre("a", " \n", " b"));
  EXPECT_THAT(Pieces("a\tb"), ElementsAre("a", "\t", "b"));
  EXPECT_THAT(Pieces("end  \n"), ElementsAre("end", "  \n"));
  EXPECT_THAT(Pieces("  "), ElementsAre("  "));
  EXPECT_THAT(Pieces(" "), ElementsAre(" "));
  EXPECT_THAT(Pieces(" !?x"), ElementsAre(" !?", "x"));
  EXPECT_THAT(Pieces("x12y"), ElementsAre("x", "12", "y"));
  // Contractions are small letters, and come before all else; another ' is punctuation.
  EXPECT_THAT(Pieces("don't'll'd'm'S"), ElementsAre("don", "'t", "'ll", "'d", "'m", "'", "S"));
  EXPECT_THAT(Pieces("''s"), ElementsAre("''", "s"));
  EXPECT_THAT(Pieces(" 's"), ElementsAre(" '", "s"));
  EXPECT_THAT(Pieces("'st"), ElementsAre("'s", "t"));
  EXPECT_THAT(Pieces("'r"), ElementsAre("'", "r"));
  EXPECT_THAT(Pieces("'"), ElementsAre("'"));
}

TEST(Gpt2Pieces, KindsOfCharactersAreUnicodes) {
  EXPECT_THAT(Pieces("gr\u00f6\u00dfer als \u65e5\u672c\u8a9e"),
              ElementsAre("gr\u00f6\u00dfer", " als", " \u65e5\u672c\u8a9e"));
  EXPECT_THAT(Pieces("x\u00b2\u0661\u2167y"), ElementsAre("x", "\u00b2\u0661\u2167", "y")) << "No, Nd, Nl";
  EXPECT_THAT(Pieces("a\u00a0\u3000b"), ElementsAre("a", "\u00a0", "\u3000", "b"));
  EXPECT_THAT(Pieces("a\u0301b"), ElementsAre("a", "\u0301", "b")) << "a mark is no letter";
  EXPECT_THAT(Pieces("hi \U0001f426!"), ElementsAre("hi", " \U0001f426!"));
  EXPECT_THAT(Pieces("a\x1c"
                     "b"),
              ElementsAre("a", "\x1c", "b"));
}

TEST(Gpt2Pieces, BytesThatAreNoCharacterArePunctuation) {
  EXPECT_THAT(Pieces("a\xff\x80"
                     "b"),
              ElementsAre("a", "\xff\x80", "b"));
  EXPECT_THAT(Pieces("a\xe2\x82"), ElementsAre("a", "\xe2\x82"));
  EXPECT_THAT(Pieces(" \xc3("), ElementsAre(" \xc3("));
}

// Texts of what is difficult: spaces, apostrophes, parts of characters.
std::string RandomText(std::mt19937_64* random, size_t parts) {
  static const std::vector<std::string> kParts = {" ",    " ",      "  ",     "\n",       "\t",
                                                  "'",    "'s",     "'re",    "r",        "e",
                                                  "low",  "er",     "12",     "3",        "!",
                                                  ",",    "\u00e9", "\u65e5", "\u00a0",   "\U0001f426",
                                                  "\xe2", "\x82",   "\xff",   "\xf0\x9f", std::string(1, '\0')};
  std::string text;
  for (size_t i = 0; i < parts; ++i) text += kParts[(*random)() % kParts.size()];
  return text;
}

const std::vector<std::pair<std::string, std::string>> kLowMerges = {
    {"l", "o"}, {"lo", "w"}, {"e", "r"}, {"\u0120", "low"}, {"low", "er"}};

TEST(Gpt2Tokenizer, MergesInTheirOrder) {
  const auto tokenizer = Make(Vocabulary(kLowMerges));
  EXPECT_EQ(tokenizer->vocabulary(), 261u);
  EXPECT_EQ(tokenizer->end_of_text(), std::nullopt);
  // 256 lo, 257 low, 258 er, 259 " low", 260 lower.
  EXPECT_THAT(Encode(tokenizer.get(), "lower"), ElementsAre(260));
  EXPECT_THAT(Encode(tokenizer.get(), "low low lower"), ElementsAre(257, 259, 259, 258))
      << "the space's merge comes before that with er";
  EXPECT_THAT(Encode(tokenizer.get(), "lo"), ElementsAre(256));
  EXPECT_THAT(Encode(tokenizer.get(), "slower!"), ElementsAre('s', 260, '!'));
  EXPECT_THAT(Encode(tokenizer.get(), ""), ElementsAre());
  EXPECT_THAT(Encode(tokenizer.get(), "low\ner"), ElementsAre(257, '\n', 258)) << "no merge over pieces";
}

TEST(Gpt2Tokenizer, AnyBytesComeBack) {
  const auto tokenizer = Make(Vocabulary(kLowMerges));
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(Decode(*tokenizer, Encode(tokenizer.get(), all)), all);
  std::mt19937_64 random(1);
  for (int i = 0; i < 500; ++i) {
    std::string bytes(random() % 60, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_EQ(Decode(*tokenizer, Encode(tokenizer.get(), bytes)), bytes);
    const std::string text = RandomText(&random, random() % 40);
    EXPECT_EQ(Decode(*tokenizer, Encode(tokenizer.get(), text)), text);
    EXPECT_EQ(absl::StrJoin(Pieces(text), ""), text);
  }
}

TEST(Gpt2Tokenizer, ATextInPiecesHasTheSameTokens) {
  std::mt19937_64 random(2);
  const auto tokenizer = Make(Vocabulary(kLowMerges));
  for (int i = 0; i < 500; ++i) {
    const std::string text = RandomText(&random, 1 + random() % 30);
    const std::vector<uint16_t> whole = Encode(tokenizer.get(), text);
    std::vector<uint16_t> tokens;
    size_t begin = 0, end = 0;
    while (begin < text.size() || end < text.size()) {
      end = std::min(text.size(), end + 1 + random() % 4);
      const size_t before = tokens.size();
      size_t used = 0;
      ASSERT_TRUE(tokenizer->Encode(text.substr(begin, end - begin), end == text.size(), &tokens, &used).ok());
      const std::vector<uint16_t> more(tokens.begin() + static_cast<std::ptrdiff_t>(before), tokens.end());
      EXPECT_EQ(Decode(*tokenizer, more), text.substr(begin, used));
      begin += used;
    }
    EXPECT_EQ(tokens, whole) << testing::PrintToString(text);
  }
}

// As the algorithm is told: as long as there is one, the pair of the least rank becomes one, wherever it stands.
std::vector<std::string> MergedPlainly(std::vector<std::string> word,
                                       const std::vector<std::pair<std::string, std::string>>& merges) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) ranks[merges[rank]] = rank;
  for (;;) {
    std::optional<size_t> least;
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      const auto found = ranks.find({word[i], word[i + 1]});
      if (found != ranks.end() && (!least.has_value() || found->second < *least)) least = found->second;
    }
    if (!least.has_value()) return word;
    const auto& [left, right] = merges[*least];
    std::vector<std::string> next;
    for (size_t i = 0; i < word.size(); ++i) {
      const bool pair = i + 1 < word.size() && word[i] == left && word[i + 1] == right;
      next.push_back(pair ? left + right : word[i]);
      i += pair ? 1 : 0;
    }
    word = std::move(next);
  }
}

TEST(Gpt2Tokenizer, MergesAreThoseOfThePlainAlgorithm) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    // Any valid list over two or three letters; the same token may be made in two ways.
    const size_t letters = 2 + random() % 2;
    std::vector<std::string> there = {"a", "b", "c"};
    there.resize(letters);
    std::vector<std::pair<std::string, std::string>> merges;
    for (int i = 0; i < 12; ++i) {
      const std::pair<std::string, std::string> merge = {there[random() % there.size()],
                                                         there[random() % there.size()]};
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      merges.push_back(merge);
      there.push_back(merge.first + merge.second);
    }
    const Gpt2Vocabulary vocabulary = Vocabulary(merges);
    const auto tokenizer = Make(vocabulary);
    for (int word = 0; word < 20; ++word) {
      std::string text(1 + random() % 90, 'a');  // Some are longer than what is remembered.
      std::vector<std::string> plain;
      for (char& c : text) {
        c = static_cast<char>('a' + random() % letters);
        plain.emplace_back(1, c);
      }
      std::vector<std::string> got;
      for (const uint16_t token : Encode(tokenizer.get(), text)) got.push_back(vocabulary.tokens[token]);
      ASSERT_EQ(got, MergedPlainly(plain, merges)) << text << " round " << round;
      ASSERT_EQ(Encode(tokenizer.get(), text), Encode(tokenizer.get(), text)) << "remembered or not";
    }
  }
}

TEST(Gpt2Tokenizer, TheEndOfATextIsATokenThatTextDoesNotMake) {
  Gpt2Vocabulary vocabulary = Vocabulary(kLowMerges);
  vocabulary.tokens.emplace_back("<|endoftext|>");
  const auto tokenizer = Make(vocabulary);
  EXPECT_EQ(tokenizer->end_of_text(), 261);
  EXPECT_EQ(Decode(*tokenizer, {257, 261}), "low<|endoftext|>");
  EXPECT_EQ(Encode(tokenizer.get(), "<|endoftext|>").size(), 13u);
  std::string text;
  EXPECT_THAT(std::string(tokenizer->Decode(std::vector<uint16_t>{262}, &text).message()),
              HasSubstr("token 262 is not one of the 262"));
}

TEST(Gpt2Tokenizer, AVocabularyThatDoesNotFitIsRefused) {
  const auto refused = [](Gpt2Vocabulary vocabulary) {
    const auto tokenizer = MakeGpt2Tokenizer(std::move(vocabulary));
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(tokenizer.status().message());
  };
  Gpt2Vocabulary vocabulary = Vocabulary({});
  vocabulary.tokens.erase(vocabulary.tokens.begin() + 65);
  EXPECT_THAT(refused(vocabulary), HasSubstr("no token for byte 65"));
  vocabulary = Vocabulary({});
  vocabulary.tokens.emplace_back("a");
  EXPECT_THAT(refused(vocabulary), HasSubstr("token \"a\" is there twice"));
  vocabulary = Vocabulary(kLowMerges);
  vocabulary.tokens.pop_back();
  EXPECT_THAT(refused(vocabulary), HasSubstr("merge 4 (\"low er\") makes what is not in the vocabulary"));
  vocabulary = Vocabulary(kLowMerges);
  std::swap(vocabulary.merges[1], vocabulary.merges[3]);
  EXPECT_THAT(refused(vocabulary), HasSubstr("is of what no merge before it makes"));
  vocabulary = Vocabulary(kLowMerges);
  vocabulary.merges.push_back(vocabulary.merges[0]);
  EXPECT_THAT(refused(vocabulary), HasSubstr("merge 5 (\"l o\") is there twice"));
  vocabulary = Vocabulary({});
  for (int i = 0; i < 65'281; ++i) vocabulary.tokens.push_back(absl::StrCat("token", i));
  EXPECT_THAT(refused(vocabulary), HasSubstr("has 65537 tokens, expected at most 65536"));
}

TEST(Gpt2Tokenizer, IsReadFromTheTwoPublicFiles) {
  const TempFiles files;
  const Gpt2Vocabulary vocabulary = Vocabulary(kLowMerges);
  std::string json = "{";
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string& token = vocabulary.tokens[i];
    absl::StrAppend(&json, i == 0 ? "" : ", ", "\"", token == "\"" || token == "\\" ? "\\" : "", token, "\": ", i);
  }
  files.Write("vocab.json", json + "}");
  files.Write("merges.txt", "#version: 0.2\nl o\nlo w\ne r\n\u0120 low\nlow er\n");
  const auto tokenizer = LoadGpt2Tokenizer(files.Path("merges.txt"), files.Path("vocab.json"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Encode(tokenizer->get(), "low lower"), ElementsAre(257, 259, 258));

  const auto refused = [&](const std::string& merges, const std::string& tokens) {
    files.Write("m", merges);
    files.Write("v", tokens);
    const absl::Status status = LoadGpt2Tokenizer(files.Path("m"), files.Path("v")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused("l o\nlo  w\n", json + "}"), HasSubstr("/m:2: \"lo  w\", expected two tokens"));
  EXPECT_THAT(refused("lo w\n", json + "}"), HasSubstr("merge 0 (\"lo w\") is of what no merge before it makes"));
  EXPECT_THAT(refused("", json), HasSubstr("/v: expected a JSON object"));
  EXPECT_THAT(refused("", "[]"), HasSubstr("/v: expected a JSON object"));
  EXPECT_THAT(refused("", "{\"a\": 0, \"b\": 2}"), HasSubstr("token \"b\" has number 2, expected 0 to 1"));
  EXPECT_THAT(refused("", "{\"a\": 0, \"b\": 0}"), HasSubstr("both have number 0"));
  EXPECT_THAT(refused("", "{\"a\": \"x\"}"), HasSubstr("token \"a\" has number \"x\""));
  EXPECT_EQ(LoadGpt2Tokenizer(files.Path("none"), files.Path("vocab.json")).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sparrow
