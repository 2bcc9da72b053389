#include "base/nearest.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sparrow {
namespace {

// Levenshtein's, one row at a time.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestHint(absl::string_view word, const std::vector<std::string>& names) {
  constexpr size_t kEditsMax = 2;  // Farther is no help.
  const std::string* nearest = nullptr;
  size_t nearest_distance = kEditsMax + 1;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(word, name);
    if (distance < nearest_distance) {
      nearest = &name;
      nearest_distance = distance;
    }
  }
  return nearest == nullptr ? "" : absl::StrCat("; did you mean ", *nearest, "?");
}

}  // namespace sparrow
