#include "worker/line_parser.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sparrow {

std::string Quoted(absl::string_view bytes) {
  constexpr size_t kShownMax = 48;
  return absl::StrCat("\"", absl::CHexEscape(bytes.substr(0, kShownMax)), bytes.size() > kShownMax ? "...\"" : "\"");
}

}  // namespace sparrow
