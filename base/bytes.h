#ifndef SPARROW_BASE_BYTES_H_
#define SPARROW_BASE_BYTES_H_

// Byte counts as people write them, and little-endian arrays as bytes.

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sparrow {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "wire and files are little-endian and are written by memcpy");

// "4GiB", "512 MiB", "1000000" (bytes), "1.5GB". Units: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB.
// InvalidArgument otherwise.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);

// "1.5 GiB".
std::string FormatBytes(uint64_t bytes);

template <typename T>
absl::string_view AsBytes(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// Copies bytes to values. REQUIRES: bytes.size() == values.size_bytes().
template <typename T>
void CopyBytes(absl::string_view bytes, std::span<T> values) {
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

}  // namespace sparrow

#endif  // SPARROW_BASE_BYTES_H_
