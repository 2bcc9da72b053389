#include "base/utf8.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sparrow {

namespace {

// Of the character that begins at `i`; 0: none does.
size_t CharacterBytes(absl::string_view text, size_t i) {
  const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
  const unsigned first = byte(i);
  if (first < 0x80) return 1;
  // What follows the first byte, and the bounds of the second.
  size_t more = 0;
  unsigned low = 0x80, high = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    more = 1;
  } else if (first >= 0xe0 && first <= 0xef) {
    more = 2;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    more = 3;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  if (byte(i + 1) < low || byte(i + 1) > high) return 0;
  for (size_t j = 2; j <= more; ++j) {
    if ((byte(i + j) & 0xc0) != 0x80) return 0;
  }
  return 1 + more;
}

}  // namespace

size_t Utf8PrefixBytes(absl::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const size_t bytes = CharacterBytes(text, i);
    if (bytes == 0) return i;
    i += bytes;
  }
  return text.size();
}

Utf8Character FirstCharacter(absl::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at])); };
  const size_t bytes = CharacterBytes(text, 0);
  switch (bytes) {
    case 0:
      return {.code = Utf8Character::kNone, .bytes = 1};
    case 1:
      return {.code = byte(0), .bytes = 1};
    case 2:
      return {.code = (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f), .bytes = 2};
    case 3:
      return {.code = (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), .bytes = 3};
    default:
      return {.code = (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f),
              .bytes = 4};
  }
}

void AppendUtf8(uint32_t code, std::string* text) {
  const auto put = [text](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
    return;
  }
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

std::string AsUtf8(absl::string_view text) {
  std::string result;
  for (;;) {
    const size_t good = Utf8PrefixBytes(text);
    absl::StrAppend(&result, text.substr(0, good));
    if (good == text.size()) return result;
    absl::StrAppend(&result, absl::CHexEscape(text.substr(good, 1)));
    text.remove_prefix(good + 1);
  }
}

}  // namespace sparrow
