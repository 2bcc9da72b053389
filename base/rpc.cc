#include "base/rpc.h"

#include <grpc/support/log.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"

namespace sparrow {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

bool IsRetryable(const absl::Status& status) { return absl::IsUnavailable(status); }

namespace {

struct Argument {
  const char* name;
  int value;
};

// A message of a megabyte in a few frames, read by a few system calls into a few buffers, without waiting for the other
// end's window: gRPC's defaults (16 KiB, 8 KiB, 64 KiB) are for small ones.
constexpr Argument kForRows[] = {
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20},    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20},
    {GRPC_ARG_TCP_READ_CHUNK_SIZE, 1 << 20},     {GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 1 << 20},
    {GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 << 20},
};

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, Traffic traffic) {
  grpc::ChannelArguments arguments;
  if (traffic == Traffic::kRows) {
    for (const Argument& argument : kForRows) arguments.SetInt(argument.name, argument.value);
  }
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  // A channel of its own for each caller: one TCP stream is not shared between workers of one process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A peer that vanished without a word is noticed in 20 s even while a call waits.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // How long one attempt to connect may take (a refused one ends at once): a busy peer may need a while to answer.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY,
                   0);  // Cluster traffic never goes through a web proxy that the environment names.
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

absl::Status WaitForChannel(grpc::Channel* channel, const std::string& what, const std::string& address,
                            absl::Duration timeout) {
  if (channel->WaitForConnected(DeadlineAfter(timeout))) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("no ", what, " answers at ", address, " (waited ",
                                             absl::FormatDuration(timeout),
                                             "); is it running, and is the address right?"));
}

namespace {

// Keeps gRPC's own lines off stderr while it lives: what they say is in the Status that the caller prints.
class QuietGrpcLog {
 public:
  QuietGrpcLog() {
    gpr_set_log_function([](gpr_log_func_args*) {});
  }
  ~QuietGrpcLog() { gpr_set_log_function(nullptr); }  // nullptr: gRPC's default.
};

// Whether a server may make its socket at `path`. gRPC would remove one that another program serves, and that program
// would never know.
absl::Status CheckSocketPath(const std::string& path) {
  const auto refused = [&](const auto&... why) {
    return absl::UnavailableError(absl::StrCat("cannot listen on unix:", path, ": ", why...));
  };
  sockaddr_un address{};
  if (path.size() >= sizeof(address.sun_path)) {
    return refused("the path has ", path.size(), " bytes, a socket's has at most ", sizeof(address.sun_path) - 1);
  }
  const std::filesystem::path parent = std::filesystem::absolute(path).parent_path();
  std::error_code error;
  if (!std::filesystem::is_directory(parent, error)) return refused(parent.string(), " is not a directory");
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) {
    return errno == ENOENT ? absl::OkStatus() : refused(std::strerror(errno));
  }
  if (!S_ISSOCK(found.st_mode)) return refused("something else than a socket is there; choose another path");
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return refused(std::strerror(errno));
  const absl::Cleanup close_it = [fd] { close(fd); };
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EAGAIN) {
    return refused("another program listens there; stop it, or choose another path");
  }
  // A socket that nobody serves is what a program that was killed leaves.
  return errno == ECONNREFUSED ? absl::OkStatus() : refused(std::strerror(errno));
}

}  // namespace

absl::StatusOr<ListeningServer> StartGrpcServer(const std::string& address, const std::vector<grpc::Service*>& services,
                                                Traffic traffic) {
  absl::string_view socket_path = address;
  const bool is_unix = absl::ConsumePrefix(&socket_path, "unix:");
  if (is_unix) RETURN_IF_ERROR(CheckSocketPath(std::string(socket_path)));
  grpc::ServerBuilder builder;
  if (traffic == Traffic::kRows) {
    for (const Argument& argument : kForRows) builder.AddChannelArgument(argument.name, argument.value);
  }
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Callers ping each 10 s, also while no call is open.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  for (grpc::Service* service : services) builder.RegisterService(service);
  int port = 0;
  if (!address.empty()) builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  ListeningServer listening;
  {
    const QuietGrpcLog quiet;
    listening.server = builder.BuildAndStart();
  }
  if (listening.server == nullptr || (!address.empty() && !is_unix && port == 0)) {
    if (is_unix) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address, "; may this user write there?"));
    }
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": the port is in use, or the host is not this machine's; choose ",
                     "another port (0: a free one), or name a host or address of this machine"));
  }
  listening.address =
      address.empty() || is_unix ? address : absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return listening;
}

std::chrono::system_clock::time_point DeadlineAfter(absl::Duration timeout) {
  return absl::ToChronoTime(absl::Now() + timeout);
}

}  // namespace sparrow
