#ifndef SPARROW_BASE_ADDRESS_H_
#define SPARROW_BASE_ADDRESS_H_

// Addresses as users write them: HOST:PORT, an IPv6 host in brackets, or unix:PATH. gRPC and the web server behind
// /metrics take what is wrong in ways of their own (a port modulo 65536, for one), so it is checked here first.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sparrow {

enum class AddressUse {
  kListen,       // Port 0 picks a free one; unix:PATH will do.
  kListenOnTcp,  // Port 0 picks a free one.
  kConnect,      // Port 1 to 65535; unix:PATH will do.
};

struct HostPort {
  std::string host;  // Without brackets.
  uint16_t port = 0;
};

// InvalidArgument says what is wrong with the host or the port. unix:PATH is not one.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// OK if `address` will do. InvalidArgument quotes it, says what is wrong, and how it is written.
absl::Status CheckAddress(absl::string_view address, AddressUse use);

}  // namespace sparrow

#endif  // SPARROW_BASE_ADDRESS_H_
