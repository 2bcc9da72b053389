#include "client/gpt2_tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "client/tokenizer_json.h"

namespace sparrow {
namespace {

constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();
// Pieces whose tokens are remembered: most of a text is a few thousand words.
constexpr size_t kRememberedMax = 1 << 17;
constexpr size_t kRememberedBytesMax = 64;

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The character that stands for each byte in the files.
const std::array<uint32_t, 256>& LetterCodes() {
  static const auto codes = [] {
    std::array<uint32_t, 256> made{};
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      made[byte] = printable ? byte : next++;
    }
    return made;
  }();
  return codes;
}

// What a token stands for. One with a character that is no byte's letter, as special ones may have, is itself.
std::string BytesOf(const std::string& letters) {
  static const auto& bytes = *new absl::flat_hash_map<uint32_t, char>([] {
    absl::flat_hash_map<uint32_t, char> made;
    for (uint32_t byte = 0; byte < 256; ++byte) made[LetterCodes()[byte]] = static_cast<char>(byte);
    return made;
  }());
  std::string text;
  for (absl::string_view rest = letters; !rest.empty();) {
    const Utf8Character character = FirstCharacter(rest);
    const auto byte = bytes.find(character.code);
    if (byte == bytes.end()) return letters;
    text.push_back(byte->second);
    rest.remove_prefix(character.bytes);
  }
  return text;
}

class Gpt2Tokenizer : public Tokenizer {
 public:
  explicit Gpt2Tokenizer(Gpt2Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  // Checks the vocabulary, and makes of it what follows from it.
  absl::Status Prepare();

  uint32_t vocabulary() const override { return static_cast<uint32_t>(vocabulary_.tokens.size()); }
  std::optional<uint16_t> end_of_text() const override { return end_of_text_; }
  absl::Status Encode(absl::string_view text, bool last, std::vector<uint16_t>* tokens, size_t* used) override;
  absl::Status Decode(std::span<const uint16_t> tokens, std::string* text) const override;
  std::string ToJson() const override;

 private:
  struct Merge {
    uint32_t rank = kNoMerge;
    uint16_t token = 0;
  };
  // A token of a piece while its neighbours are merged into it.
  struct Node {
    uint16_t token = 0;
    uint32_t rank = kNoMerge;  // Of the merge with the next one.
    int32_t before = -1;
    int32_t next = -1;  // -1: the last one.
  };
  // A pair that may be merged: node `at` and the next one.
  struct Pair {
    uint32_t rank;
    int32_t at;

    bool operator>(const Pair& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };

  Merge MergeOf(uint16_t left, uint16_t right) const {
    const auto found = merges_.find(uint32_t{left} << 16 | right);
    return found == merges_.end() ? Merge{} : found->second;
  }
  void EncodePiece(absl::string_view piece, std::vector<uint16_t>* tokens);
  // Node `at` has a new neighbour behind it.
  void Rank(int32_t at);

  // Constant after Prepare.
  Gpt2Vocabulary vocabulary_;
  std::vector<std::string> bytes_;  // Of each token.
  std::array<uint16_t, 256> byte_tokens_{};
  absl::flat_hash_map<uint32_t, Merge> merges_;  // By left << 16 | right.
  std::optional<uint16_t> end_of_text_;

  absl::flat_hash_map<std::string, std::vector<uint16_t>> remembered_;
  std::vector<Node> nodes_;  // Of the piece in work.
  std::vector<Pair> pairs_;  // A heap: the least rank, and of one rank the leftmost, is first.
};

absl::Status Gpt2Tokenizer::Prepare() {
  if (vocabulary_.tokens.size() > kVocabularyMax) {
    return Bad("the vocabulary has ", vocabulary_.tokens.size(), " tokens, expected at most ", kVocabularyMax);
  }
  absl::flat_hash_map<std::string, uint16_t> by_letters;
  for (size_t token = 0; token < vocabulary_.tokens.size(); ++token) {
    const std::string& letters = vocabulary_.tokens[token];
    if (!by_letters.emplace(letters, static_cast<uint16_t>(token)).second) {
      return Bad("token \"", absl::CHexEscape(letters), "\" is there twice");
    }
    bytes_.push_back(BytesOf(letters));
    if (letters == kEndOfText) end_of_text_ = static_cast<uint16_t>(token);
  }
  absl::flat_hash_set<uint16_t> made;  // Tokens that are there when a merge is applied.
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const auto found = by_letters.find(Gpt2Letter(static_cast<unsigned char>(byte)));
    if (found == by_letters.end()) return Bad("the vocabulary has no token for byte ", byte);
    byte_tokens_[byte] = found->second;
    made.insert(found->second);
  }
  for (size_t rank = 0; rank < vocabulary_.merges.size(); ++rank) {
    const auto& [left, right] = vocabulary_.merges[rank];
    const auto wrong = [&, &l = left, &r = right](absl::string_view what) {
      return Bad("merge ", rank, " (\"", absl::CHexEscape(l), " ", absl::CHexEscape(r), "\") ", what);
    };
    const auto from = by_letters.find(left), with = by_letters.find(right), to = by_letters.find(left + right);
    if (from == by_letters.end() || with == by_letters.end() || !made.contains(from->second) ||
        !made.contains(with->second)) {
      return wrong("is of what no merge before it makes");
    }
    if (to == by_letters.end()) return wrong("makes what is not in the vocabulary");
    const uint32_t pair = uint32_t{from->second} << 16 | with->second;
    if (!merges_.emplace(pair, Merge{static_cast<uint32_t>(rank), to->second}).second) return wrong("is there twice");
    made.insert(to->second);
  }
  return absl::OkStatus();
}

absl::Status Gpt2Tokenizer::Encode(absl::string_view text, bool last, std::vector<uint16_t>* tokens, size_t* used) {
  *used = 0;
  while (*used < text.size()) {
    const absl::string_view rest = text.substr(*used);
    const absl::string_view piece = rest.substr(0, Gpt2PieceBytes(rest, last));
    if (piece.empty()) break;
    *used += piece.size();
    if (piece.size() > kRememberedBytesMax) {
      EncodePiece(piece, tokens);
      continue;
    }
    const auto found = remembered_.find(piece);
    if (found != remembered_.end()) {
      tokens->insert(tokens->end(), found->second.begin(), found->second.end());
      continue;
    }
    const auto before = static_cast<std::ptrdiff_t>(tokens->size());
    EncodePiece(piece, tokens);
    if (remembered_.size() >= kRememberedMax) remembered_.clear();
    remembered_.emplace(piece, std::vector<uint16_t>(tokens->begin() + before, tokens->end()));
  }
  return absl::OkStatus();
}

void Gpt2Tokenizer::Rank(int32_t at) {
  Node& node = nodes_[static_cast<size_t>(at)];
  node.rank = node.next < 0 ? kNoMerge : MergeOf(node.token, nodes_[static_cast<size_t>(node.next)].token).rank;
  if (node.rank == kNoMerge) return;
  pairs_.push_back({node.rank, at});
  std::push_heap(pairs_.begin(), pairs_.end(), std::greater<>());
}

void Gpt2Tokenizer::EncodePiece(absl::string_view piece, std::vector<uint16_t>* tokens) {
  CHECK_LT(piece.size(), size_t{1} << 31);
  const auto size = static_cast<int32_t>(piece.size());
  nodes_.assign(piece.size(), Node{});
  pairs_.clear();
  for (int32_t i = 0; i < size; ++i) {
    Node& node = nodes_[static_cast<size_t>(i)];
    node.token = byte_tokens_[static_cast<unsigned char>(piece[static_cast<size_t>(i)])];
    node.before = i - 1;
    node.next = i + 1 < size ? i + 1 : -1;
  }
  for (int32_t i = 0; i < size; ++i) Rank(i);
  std::vector<int32_t> changed;  // Nodes whose neighbours are others.
  while (!pairs_.empty()) {
    // All pairs of one rank, before those that they make.
    const uint32_t rank = pairs_.front().rank;
    changed.clear();
    while (!pairs_.empty() && pairs_.front().rank == rank) {
      const int32_t at = pairs_.front().at;
      std::pop_heap(pairs_.begin(), pairs_.end(), std::greater<>());
      pairs_.pop_back();
      Node& node = nodes_[static_cast<size_t>(at)];
      if (node.rank != rank) continue;  // One of the two is another by now.
      Node& right = nodes_[static_cast<size_t>(node.next)];
      node.token = MergeOf(node.token, right.token).token;
      node.next = right.next;
      node.rank = right.rank = kNoMerge;
      if (node.next >= 0) nodes_[static_cast<size_t>(node.next)].before = at;
      changed.push_back(at);
      if (node.before >= 0) {
        nodes_[static_cast<size_t>(node.before)].rank = kNoMerge;
        changed.push_back(node.before);
      }
    }
    for (const int32_t at : changed) {
      // One that was merged into its neighbour since is none any more; one that is here twice is ranked once.
      const Node& node = nodes_[static_cast<size_t>(at)];
      const bool there = at == 0 || (node.before >= 0 && nodes_[static_cast<size_t>(node.before)].next == at);
      if (there && node.rank == kNoMerge) Rank(at);
    }
  }
  for (int32_t at = 0; at >= 0; at = nodes_[static_cast<size_t>(at)].next) {
    tokens->push_back(nodes_[static_cast<size_t>(at)].token);
  }
}

absl::Status Gpt2Tokenizer::Decode(std::span<const uint16_t> tokens, std::string* text) const {
  for (const uint16_t token : tokens) {
    if (token >= bytes_.size()) return Bad("token ", token, " is not one of the ", bytes_.size(), " of the tokenizer");
    text->append(bytes_[token]);
  }
  return absl::OkStatus();
}

std::string Gpt2Tokenizer::ToJson() const {
  nlohmann::ordered_json json = TokenizerHeader("gpt2", *this);
  json["tokens"] = vocabulary_.tokens;
  json["merges"] = nlohmann::ordered_json::array();
  for (const auto& [left, right] : vocabulary_.merges) json["merges"].push_back(left + " " + right);
  return json.dump(0) + "\n";
}

// vocab.json: {"token in letters": number, ...}, all numbers from 0 on.
absl::StatusOr<std::vector<std::string>> ReadVocabulary(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object())
    return Bad(path, ": expected a JSON object of tokens and their numbers, as GPT-2's vocab.json");
  std::vector<std::string> tokens(json.size());
  for (const auto& [letters, number] : json.items()) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() >= tokens.size()) {
      return Bad(path, ": token \"", absl::CHexEscape(letters), "\" has number ", number.dump(), ", expected 0 to ",
                 tokens.size() - 1, ", each once");
    }
    std::string& token = tokens[number.get<uint64_t>()];
    if (!token.empty()) {
      return Bad(path, ": tokens \"", absl::CHexEscape(token), "\" and \"", absl::CHexEscape(letters),
                 "\" both have number ", number.get<uint64_t>());
    }
    token = letters;
  }
  return tokens;
}

}  // namespace

std::string Gpt2Letter(unsigned char byte) {
  std::string letter;
  AppendUtf8(LetterCodes()[byte], &letter);
  return letter;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeGpt2Tokenizer(Gpt2Vocabulary vocabulary) {
  auto tokenizer = std::make_unique<Gpt2Tokenizer>(std::move(vocabulary));
  RETURN_IF_ERROR(tokenizer->Prepare());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGpt2Tokenizer(const std::string& merges_path,
                                                             const std::string& vocabulary_path) {
  Gpt2Vocabulary vocabulary;
  ASSIGN_OR_RETURN(vocabulary.tokens, ReadVocabulary(vocabulary_path));
  ASSIGN_OR_RETURN(const std::string text, ReadFile(merges_path));
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view words = absl::StripSuffix(line, "\r");
    if (words.empty() || (number == 1 && absl::StartsWith(words, "#version"))) continue;
    const std::vector<std::string> pair = absl::StrSplit(words, ' ');
    if (pair.size() != 2 || pair[0].empty() || pair[1].empty()) {
      return Bad(merges_path, ":", number, ": \"", absl::CHexEscape(words),
                 "\", expected two tokens and a space, as in ", "GPT-2's merges.txt");
    }
    vocabulary.merges.emplace_back(pair[0], pair[1]);
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeGpt2Tokenizer(std::move(vocabulary));
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), absl::StrCat(merges_path, " with ", vocabulary_path));
  return tokenizer;
}

}  // namespace sparrow
