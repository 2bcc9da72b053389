#ifndef SPARROW_COORDINATOR_TEXT_H_
#define SPARROW_COORDINATOR_TEXT_H_

// Strings of peers, made fit for a message of one line.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sparrow {

// At most bytes_max bytes and "..." , cut between characters of UTF-8; control characters become blanks.
std::string OneLine(absl::string_view text, size_t bytes_max);

// The text in quotes, escaped, at most 64 bytes of it.
std::string Quoted(absl::string_view text);

// "1 worker", "2 workers".
std::string Count(uint64_t count, absl::string_view noun);

// "a, b, c and 7 more".
std::string ListSome(const std::vector<std::string>& items, size_t items_max);

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_TEXT_H_
