#ifndef SPARROW_BASE_NEAREST_H_
#define SPARROW_BASE_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sparrow {

// Used for flags, commands and fields alike. "; did you mean NAME?" with the one of `names` that is at most two edits
// from `word`, or "".
std::string NearestHint(absl::string_view word, const std::vector<std::string>& names);

}  // namespace sparrow

#endif  // SPARROW_BASE_NEAREST_H_
