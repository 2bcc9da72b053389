#ifndef SPARROW_BASE_UTF8_H_
#define SPARROW_BASE_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace sparrow {

// The bytes at the beginning of `text` that are UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF);
// text.size() if all are.
size_t Utf8PrefixBytes(absl::string_view text);

// `text` with \xNN for each byte that does not belong, such as a file's name in another encoding: protobuf refuses such
// strings on the wire.
std::string AsUtf8(absl::string_view text);

}  // namespace sparrow

#endif  // SPARROW_BASE_UTF8_H_
