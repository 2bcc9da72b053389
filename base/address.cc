#include "base/address.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr uint32_t kPortMax = 65535;

bool AllDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
}

absl::Status Check(absl::string_view address, AddressUse use) {
  absl::string_view path = address;
  if (use != AddressUse::kListenOnTcp && absl::ConsumePrefix(&path, "unix:")) {
    return path.empty() ? absl::InvalidArgumentError("the path after unix: is missing") : absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  if (use == AddressUse::kConnect && parsed.port == 0) {
    return absl::InvalidArgumentError("port 0 is nobody's; name the one that is listened on, 1 to 65535");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || address.back() == ']') {
    return absl::InvalidArgumentError("the port is missing");
  }
  absl::string_view host = address.substr(0, colon);
  const absl::string_view port = address.substr(colon + 1);
  if (host.empty()) return absl::InvalidArgumentError("the host is missing");
  const bool bracketed = host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return absl::InvalidArgumentError("the host is missing");
  if (!bracketed && host.find(':') != absl::string_view::npos) {
    return absl::InvalidArgumentError("the host has a colon; write an IPv6 address in brackets, as in [::1]:7070");
  }
  if (host.find_first_of(" \t\r\n,;/[]") != absl::string_view::npos) {
    return absl::InvalidArgumentError("the host is neither a name nor an IP address");
  }
  if (port.empty()) return absl::InvalidArgumentError("the port is missing");
  uint32_t number = 0;
  if (!AllDigits(port) || !absl::SimpleAtoi(port, &number) || number > kPortMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("port \"", absl::CHexEscape(port), "\" is not an integer from 0 to ", kPortMax));
  }
  return HostPort{.host = std::string(host), .port = static_cast<uint16_t>(number)};
}

absl::Status CheckAddress(absl::string_view address, AddressUse use) {
  const absl::Status status = Check(address, use);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(address), "\": ", status.message(),
                                                 "; write HOST:PORT, as in 127.0.0.1:7070",
                                                 use == AddressUse::kListenOnTcp ? "" : ", or unix:PATH"));
}

}  // namespace sparrow
