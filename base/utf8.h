#ifndef SPARROW_BASE_UTF8_H_
#define SPARROW_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sparrow {

// The bytes at the beginning of `text` that are UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF);
// text.size() if all are.
size_t Utf8PrefixBytes(absl::string_view text);

struct Utf8Character {
  static constexpr uint32_t kNone = 0xffffffff;

  uint32_t code = kNone;  // Its number in Unicode; kNone: the first byte begins no character.
  size_t bytes = 1;       // Of kNone 1.
};
// REQUIRES: text is not empty.
Utf8Character FirstCharacter(absl::string_view text);

// REQUIRES: code is a character's: at most U+10FFFF and no surrogate.
void AppendUtf8(uint32_t code, std::string* text);

// `text` with \xNN for each byte that does not belong, such as a file's name in another encoding: protobuf refuses such
// strings on the wire.
std::string AsUtf8(absl::string_view text);

}  // namespace sparrow

#endif  // SPARROW_BASE_UTF8_H_
