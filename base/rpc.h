#ifndef SPARROW_BASE_RPC_H_
#define SPARROW_BASE_RPC_H_

// What every gRPC end here shares: the mapping of errors, message limits, listening and connecting.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sparrow {

// No message is larger, in either direction; senders split before (parameter_server.proto). gRPC refuses a larger one
// with RESOURCE_EXHAUSTED, names both sizes, and keeps the connection.
inline constexpr int kMessageBytesMax = 64 << 20;

// One to one: the codes of both are the same numbers.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// Whether a call that failed so may be sent again (the peer was not reached, or is starting): UNAVAILABLE alone.
bool IsRetryable(const absl::Status& status);

// What goes over a connection. Both ends should say the same.
enum class Traffic {
  kControl,
  kRows,  // Messages of up to megabytes: large frames and read buffers, a megabyte or so for each connection.
};

// A channel to HOST:PORT or unix:PATH. Connects when first used.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, Traffic traffic = Traffic::kControl);

// Waits until the channel is connected. Unavailable after `timeout`, naming `what` ("coordinator", "server 2") and the
// address.
absl::Status WaitForChannel(grpc::Channel* channel, const std::string& what, const std::string& address,
                            absl::Duration timeout);

struct ListeningServer {
  std::unique_ptr<grpc::Server> server;
  std::string address;  // As bound: port 0 has been replaced.
};

// Starts serving on HOST:PORT, unix:PATH, or, for an empty address, on no socket at all (InProcessChannel only).
// Unavailable names the address if it is in use or not this machine's: unlike gRPC's default, two processes cannot
// share a port, nor does one take another's Unix socket away; one that a killed program left is replaced.
absl::StatusOr<ListeningServer> StartGrpcServer(const std::string& address, const std::vector<grpc::Service*>& services,
                                                Traffic traffic = Traffic::kControl);

// A deadline for ClientContext::set_deadline.
std::chrono::system_clock::time_point DeadlineAfter(absl::Duration timeout);

}  // namespace sparrow

#endif  // SPARROW_BASE_RPC_H_
