#include "base/utf8.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sparrow {

size_t Utf8PrefixBytes(absl::string_view text) {
  const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
  for (size_t i = 0;;) {
    if (i >= text.size()) return text.size();
    const unsigned first = byte(i);
    if (first < 0x80) {
      ++i;
      continue;
    }
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
      return i;
    }
    if (byte(i + 1) < low || byte(i + 1) > high) return i;
    for (size_t j = 2; j <= more; ++j) {
      if ((byte(i + j) & 0xc0) != 0x80) return i;
    }
    i += 1 + more;
  }
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
