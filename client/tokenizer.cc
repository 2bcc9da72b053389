#include "client/tokenizer.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "client/gpt2_tokenizer.h"
#include "client/tokenizer_json.h"

namespace sparrow {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kCharacterBytesMax = 4;

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status NoToken(uint16_t token, const Tokenizer& tokenizer) {
  return Bad("token ", token, " is not one of the ", tokenizer.vocabulary(), " of the tokenizer");
}

class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(bool end_of_text) : has_end_(end_of_text) {}

  uint32_t vocabulary() const override { return has_end_ ? 257 : 256; }
  std::optional<uint16_t> end_of_text() const override {
    return has_end_ ? std::optional<uint16_t>(256) : std::nullopt;
  }

  absl::Status Encode(absl::string_view text, bool /*last*/, std::vector<uint16_t>* tokens, size_t* used) override {
    for (const char c : text) tokens->push_back(static_cast<unsigned char>(c));
    *used = text.size();
    return absl::OkStatus();
  }

  absl::Status Decode(std::span<const uint16_t> tokens, std::string* text) const override {
    for (const uint16_t token : tokens) {
      if (token >= vocabulary()) return NoToken(token, *this);
      if (token == 256) {
        absl::StrAppend(text, kEndOfText);
      } else {
        text->push_back(static_cast<char>(token));
      }
    }
    return absl::OkStatus();
  }

  std::string ToJson() const override { return TokenizerHeader("bytes", *this).dump(1) + "\n"; }

 private:
  const bool has_end_;
};

class CharacterTokenizer : public Tokenizer {
 public:
  CharacterTokenizer(const std::set<uint32_t>& characters, bool end_of_text)
      : characters_(characters.begin(), characters.end()), has_end_(end_of_text) {
    for (size_t token = 0; token < characters_.size(); ++token) {
      tokens_[characters_[token]] = static_cast<uint16_t>(token);
    }
  }

  uint32_t vocabulary() const override { return static_cast<uint32_t>(characters_.size()) + (has_end_ ? 1 : 0); }
  std::optional<uint16_t> end_of_text() const override {
    return has_end_ ? std::optional<uint16_t>(static_cast<uint16_t>(characters_.size())) : std::nullopt;
  }

  absl::Status Encode(absl::string_view text, bool last, std::vector<uint16_t>* tokens, size_t* used) override {
    for (*used = 0; *used < text.size();) {
      const absl::string_view rest = text.substr(*used);
      const Utf8Character character = FirstCharacter(rest);
      if (character.code == Utf8Character::kNone) {
        if (!last && rest.size() < kCharacterBytesMax) break;  // The rest of it may come.
        return Bad(absl::StrFormat("byte 0x%02x is not UTF-8; tokenize it by --bytes or --gpt2, or mend it",
                                   static_cast<unsigned char>(rest[0])));
      }
      const auto found = tokens_.find(character.code);
      if (found == tokens_.end()) {
        return Bad("character \"", rest.substr(0, character.bytes), "\"", absl::StrFormat(" (U+%04X)", character.code),
                   " is not among the ", characters_.size(), " that the tokenizer has; make one of all texts together");
      }
      tokens->push_back(found->second);
      *used += character.bytes;
    }
    return absl::OkStatus();
  }

  absl::Status Decode(std::span<const uint16_t> tokens, std::string* text) const override {
    for (const uint16_t token : tokens) {
      if (token >= vocabulary()) return NoToken(token, *this);
      if (token == characters_.size()) {
        absl::StrAppend(text, kEndOfText);
      } else {
        AppendUtf8(characters_[token], text);
      }
    }
    return absl::OkStatus();
  }

  std::string ToJson() const override {
    Json json = TokenizerHeader("characters", *this);
    json["characters"] = Json::array();
    for (const uint32_t code : characters_) {
      std::string character;
      AppendUtf8(code, &character);
      json["characters"].push_back(character);
    }
    return json.dump(1) + "\n";
  }

 private:
  const std::vector<uint32_t> characters_;  // Ascending.
  const bool has_end_;
  absl::flat_hash_map<uint32_t, uint16_t> tokens_;
};

// A list of strings under `name`.
absl::StatusOr<std::vector<std::string>> StringsOf(const Json& json, const char* name) {
  std::vector<std::string> strings;
  if (!json.contains(name) || !json[name].is_array()) return Bad(name, " is no list of strings");
  for (const Json& each : json[name]) {
    if (!each.is_string()) return Bad(name, "[", strings.size(), "] is ", each.dump(), ", expected a string");
    strings.push_back(each.get<std::string>());
  }
  return strings;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> CharactersFromJson(const Json& json, bool end_of_text) {
  ASSIGN_OR_RETURN(const std::vector<std::string> strings, StringsOf(json, "characters"));
  std::set<uint32_t> characters;
  for (size_t i = 0; i < strings.size(); ++i) {
    const bool one = !strings[i].empty() && FirstCharacter(strings[i]).bytes == strings[i].size();
    const uint32_t code = one ? FirstCharacter(strings[i]).code : Utf8Character::kNone;
    if (code == Utf8Character::kNone) return Bad("characters[", i, "] is not one character");
    if (!characters.empty() && code <= *characters.rbegin()) {
      return Bad("characters[", i, "] does not come behind the one before it in Unicode's order");
    }
    characters.insert(code);
  }
  return MakeCharacterTokenizer(characters, end_of_text);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Gpt2FromJson(const Json& json) {
  Gpt2Vocabulary vocabulary;
  ASSIGN_OR_RETURN(vocabulary.tokens, StringsOf(json, "tokens"));
  ASSIGN_OR_RETURN(const std::vector<std::string> merges, StringsOf(json, "merges"));
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::vector<std::string> pair = absl::StrSplit(merges[i], ' ');
    if (pair.size() != 2) return Bad("merges[", i, "] is \"", merges[i], "\", expected two tokens and a space");
    vocabulary.merges.emplace_back(pair[0], pair[1]);
  }
  return MakeGpt2Tokenizer(std::move(vocabulary));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(const Json& json) {
  if (!json.is_object() || json.value("format", Json()) != kTokenizerFormat) return Bad("is not a tokenizer's file");
  if (json.value("version", Json()) != kTokenizerVersion) {
    return Bad("has version ", json.value("version", Json()).dump(), ", expected ", kTokenizerVersion);
  }
  const Json kind = json.value("kind", Json());
  const bool end_of_text = !json.value("end_of_text", Json()).is_null();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      kind == "bytes"        ? MakeByteTokenizer(end_of_text)
      : kind == "characters" ? CharactersFromJson(json, end_of_text)
      : kind == "gpt2"       ? Gpt2FromJson(json)
                             : Bad("has kind ", kind.dump(), ", expected \"bytes\", \"characters\" or \"gpt2\"");
  if (!tokenizer.ok()) return tokenizer;
  // What is written twice must be the same.
  if (json.value("vocabulary", Json()) != (*tokenizer)->vocabulary()) {
    return Bad("has vocabulary ", json.value("vocabulary", Json()).dump(), ", but ", (*tokenizer)->vocabulary(),
               " tokens");
  }
  return tokenizer;
}

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer(bool end_of_text) { return std::make_unique<ByteTokenizer>(end_of_text); }

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeCharacterTokenizer(const std::set<uint32_t>& characters,
                                                                  bool end_of_text) {
  const uint32_t most = kVocabularyMax - (end_of_text ? 1 : 0);
  if (characters.empty()) return Bad("there is no character");
  if (characters.size() > most) {
    return Bad("there are ", characters.size(), " different characters, expected at most ", most,
               "; take --bytes or --gpt2");
  }
  return std::make_unique<CharacterTokenizer>(characters, end_of_text);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return Bad(path, ": is no JSON, expected a file that sparrowctl data tokenize wrote");
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = FromJson(json);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

absl::Status CheckTokenizerFits(absl::string_view path, const Tokenizer& tokenizer, uint32_t model_vocabulary) {
  if (tokenizer.vocabulary() <= model_vocabulary) return absl::OkStatus();
  return Bad("--tokenizer ", path, " has ", tokenizer.vocabulary(), " tokens, but the model has ", model_vocabulary,
             ": it was trained with another tokenizer");
}

}  // namespace sparrow
