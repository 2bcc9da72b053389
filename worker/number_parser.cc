#include "worker/number_parser.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

namespace sparrow {
namespace {

// "1.000" -> "1"; anything else stays.
absl::string_view WithoutZeroFraction(absl::string_view text) {
  const size_t last = text.find_last_not_of('0');
  if (last == absl::string_view::npos || last == 0 || text[last] != '.' || last + 1 == text.size()) return text;
  return text.substr(0, last);
}

template <typename T>
bool ParseWhole(absl::string_view text, int base, T* value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *value, base);
  return error == std::errc() && at == end;
}

}  // namespace

bool ParseIntegerId(absl::string_view text, uint64_t* id) {
  text = WithoutZeroFraction(text);
  if (text.empty()) return false;
  if (text[0] != '-') return ParseWhole(text, 10, id);
  int64_t negative;
  if (!ParseWhole(text, 10, &negative)) return false;
  *id = static_cast<uint64_t>(negative);
  return true;
}

bool ParseHexId(absl::string_view text, uint64_t* id) { return text.size() <= 16 && ParseWhole(text, 16, id); }

bool ParseDecimal(absl::string_view text, double* value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *value);
  // from_chars also takes "inf" and "nan".
  return error == std::errc() && at == end && std::abs(*value) <= double{std::numeric_limits<float>::max()};
}

bool ParseLabel(absl::string_view text, float* label) {
  text = WithoutZeroFraction(text);
  if (text.size() != 1 || (text[0] != '0' && text[0] != '1')) return false;
  *label = text[0] == '1' ? 1.0f : 0.0f;
  return true;
}

}  // namespace sparrow
