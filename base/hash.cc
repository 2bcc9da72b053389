#include "base/hash.h"

#include <xxhash.h>

namespace sparrow {

uint64_t HashBytes(absl::string_view bytes) { return XXH64(bytes.data(), bytes.size(), 0); }

}  // namespace sparrow
