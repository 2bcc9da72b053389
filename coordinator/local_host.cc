#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "coordinator/link.h"

namespace sparrow {

// Connecting a datagram socket sends nothing: it makes the kernel choose the route, and with it the local address.
absl::StatusOr<std::string> LocalHostTowards(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return std::string("127.0.0.1");
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is not HOST:PORT"));
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);

  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(address, ": cannot resolve the host: ", gai_strerror(error)));
  }
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };

  int last_error = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    const int socket_fd = socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket_fd < 0) {
      last_error = errno;
      continue;
    }
    absl::Cleanup close_socket = [socket_fd] { close(socket_fd); };
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    if (connect(socket_fd, info->ai_addr, info->ai_addrlen) != 0 ||
        getsockname(socket_fd, reinterpret_cast<sockaddr*>(&local), &length) != 0) {
      last_error = errno;
      continue;
    }
    char text[NI_MAXHOST];
    if (getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    return local.ss_family == AF_INET6 ? absl::StrCat("[", text, "]") : std::string(text);
  }
  return ErrnoStatus(last_error == 0 ? EADDRNOTAVAIL : last_error, "find a route to", address);
}

}  // namespace sparrow
