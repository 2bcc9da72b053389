#ifndef SPARROW_CLIENT_TOKENIZER_JSON_H_
#define SPARROW_CLIENT_TOKENIZER_JSON_H_

// What the files of all tokenizers have in common; client/tokenizer.h says what each part is.

#include <nlohmann/json.hpp>
#include <optional>

#include "client/tokenizer.h"

namespace sparrow {

inline constexpr int kTokenizerVersion = 1;

// The file but for what is of this kind alone.
inline nlohmann::ordered_json TokenizerHeader(const char* kind, const Tokenizer& tokenizer) {
  nlohmann::ordered_json json;
  json["format"] = kTokenizerFormat;
  json["version"] = kTokenizerVersion;
  json["kind"] = kind;
  json["vocabulary"] = tokenizer.vocabulary();
  const std::optional<uint16_t> end = tokenizer.end_of_text();
  json["end_of_text"] = end.has_value() ? nlohmann::ordered_json(*end) : nlohmann::ordered_json();
  return json;
}

}  // namespace sparrow

#endif  // SPARROW_CLIENT_TOKENIZER_JSON_H_
