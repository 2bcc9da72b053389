#include "worker/device.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/cuda/stream.h"

namespace sparrow {

absl::StatusOr<Device> ParseDevice(const std::string& flag) {
  if (flag == "cpu") return Device{};
  constexpr absl::string_view kPrefix = "cuda:";
  const absl::string_view number = absl::StripPrefix(flag, kPrefix);
  int gpu = -1;
  // One way to write each: SimpleAtoi alone would take signs, spaces and leading zeros.
  const bool plain = std::all_of(number.begin(), number.end(), absl::ascii_isdigit) &&
                     (number.size() == 1 || !absl::StartsWith(number, "0"));
  if (!absl::StartsWith(flag, kPrefix) || !plain || !absl::SimpleAtoi(number, &gpu)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device=\"", flag, "\" is not a device; expected cpu, or cuda:N with N from 0"));
  }
  const int count = GpuCount();
  if (count == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--device=", flag, ": no GPU can be used: ", GpuAbsence(), "; --device=cpu needs none"));
  }
  if (gpu >= count) {
    return absl::FailedPreconditionError(absl::StrCat("--device=", flag, ": this machine has ", count, " GPU",
                                                      count == 1 ? "" : "s", ", numbered from 0"));
  }
  return Device{.gpu = gpu};
}

}  // namespace sparrow
