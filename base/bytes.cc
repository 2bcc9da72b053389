#include "base/bytes.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace sparrow {
namespace {

struct Unit {
  const char* name;
  double bytes;
};

// Longest first, so that "KiB" is not read as "B".
constexpr Unit kUnits[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3},
                           {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"B", 1}};

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  absl::string_view number = text;
  double unit = 1;
  for (const Unit& candidate : kUnits) {
    if (absl::ConsumeSuffix(&number, candidate.name)) {
      unit = candidate.bytes;
      break;
    }
  }
  double value = 0;
  if (!absl::SimpleAtod(number, &value) || !(value >= 0) || value * unit >= 0x1p63) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a number of bytes; write 4GiB, 512MiB or 1000000"));
  }
  return static_cast<uint64_t>(std::llround(value * unit));
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  static constexpr const char* kNames[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  int name = 0;
  while (value >= 1024 && name < 3) {
    value /= 1024;
    ++name;
  }
  return absl::StrFormat("%.1f %s", value, kNames[name]);
}

}  // namespace sparrow
