#ifndef SPARROW_WORKER_PS_TRANSPORT_H_
#define SPARROW_WORKER_PS_TRANSPORT_H_

// How one parameter server's calls are made: over gRPC (worker/grpc_transport.cc), or directly when the server shares
// the process (client/).

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// Thread-safe. `done` is called exactly once, on any thread, possibly before the call returns; request and response
// live until then.
class PsTransport {
 public:
  using Done = std::function<void(absl::Status)>;

  virtual ~PsTransport() = default;  // Cancels what is in flight and waits for its `done`.

  virtual void Pull(const v1::PullRequest* request, v1::PullResponse* response, absl::Duration timeout, Done done) = 0;
  virtual void Push(const v1::PushRequest* request, v1::PushResponse* response, absl::Duration timeout, Done done) = 0;
  virtual void OpenJob(const v1::OpenJobRequest* request, v1::OpenJobResponse* response, absl::Duration timeout,
                       Done done) = 0;
  virtual void SaveTables(const v1::SaveTablesRequest* request, v1::SaveTablesResponse* response,
                          absl::Duration timeout, Done done) = 0;
  virtual void CloseJob(const v1::CloseJobRequest* request, v1::CloseJobResponse* response, absl::Duration timeout,
                        Done done) = 0;

  // Ends every call in flight with Cancelled, and every later one.
  virtual void Cancel() = 0;
};

// Makes the transport to a server, from the address that it registered with. Unavailable names the address.
using PsTransportFactory = std::function<absl::StatusOr<std::unique_ptr<PsTransport>>(const std::string& address)>;

// By gRPC; waits at most `connect_timeout` for the connection.
PsTransportFactory GrpcTransportFactory(absl::Duration connect_timeout);

}  // namespace sparrow

#endif  // SPARROW_WORKER_PS_TRANSPORT_H_
