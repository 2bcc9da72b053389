#ifndef SPARROW_BASE_HASH_H_
#define SPARROW_BASE_HASH_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace sparrow {

// XXH64 with seed 0 (xxHash specification 0.1.1, https://github.com/Cyan4973/xxHash). Fixed for ever: ids of string
// columns are this.
uint64_t HashBytes(absl::string_view bytes);

}  // namespace sparrow

#endif  // SPARROW_BASE_HASH_H_
