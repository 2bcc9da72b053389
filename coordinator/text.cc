#include "coordinator/text.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sparrow {

std::string OneLine(absl::string_view text, size_t bytes_max) {
  size_t end = std::min(text.size(), bytes_max);
  // Bytes 10xxxxxx continue a character: do not cut before one.
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  std::string line(text.substr(0, end));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  if (end < text.size()) line += "...";
  return line;
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kBytesMax = 64;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kBytesMax)), text.size() > kBytesMax ? "...\"" : "\"");
}

std::string Count(uint64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string ListSome(const std::vector<std::string>& items, size_t items_max) {
  if (items.size() <= items_max) return absl::StrJoin(items, ", ");
  return absl::StrCat(absl::StrJoin(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(items_max), ", "),
                      " and ", items.size() - items_max, " more");
}

}  // namespace sparrow
