#include "base/rpc.h"

#include <grpc/support/log.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

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

}  // namespace

absl::StatusOr<ListeningServer> StartGrpcServer(const std::string& address, const std::vector<grpc::Service*>& services,
                                                Traffic traffic) {
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
  const bool is_unix = absl::StartsWith(address, "unix:");
  if (listening.server == nullptr || (!address.empty() && !is_unix && port == 0)) {
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
