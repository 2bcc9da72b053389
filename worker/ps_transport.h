#ifndef SPARROW_WORKER_PS_TRANSPORT_H_
#define SPARROW_WORKER_PS_TRANSPORT_H_

// How one parameter server's calls are made: over gRPC (worker/grpc_transport.cc), or directly when the server shares
// the process (client/).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// A pull, and where its rows go.
struct RowPull {
  v1::PullRequest message;
  // [message.tables], each [n, dim]: of the keys of that entry, in their order. Of records, [n, record_bytes / 4].
  std::vector<std::span<float>> rows;
};

// A push whose gradients and records lie beside its message.
struct RowPush {
  v1::PushRequest message;  // Its `gradients` and `records` are empty.
  // [message.tables, message.records]: bytes of the table's row_type, and records; those of FLOAT32 and records aligned
  // as floats.
  std::vector<std::span<const char>> beside;
};

// Thread-safe. `done` is called exactly once, on any thread, possibly before the call returns; request and response,
// and the memory that a request points to, live until then.
class PsTransport {
 public:
  using Done = std::function<void(absl::Status)>;

  virtual ~PsTransport() = default;  // Cancels what is in flight and waits for its `done`.

  // Writes the rows to request->rows; the response has all but them. Internal if the answer is for other tables or has
  // rows of another size or type than were asked for. After an error the rows are unspecified.
  virtual void Pull(const RowPull* request, v1::PullResponse* response, absl::Duration timeout, Done done) = 0;
  virtual void Push(const RowPush* request, v1::PushResponse* response, absl::Duration timeout, Done done) = 0;
  virtual void OpenJob(const v1::OpenJobRequest* request, v1::OpenJobResponse* response, absl::Duration timeout,
                       Done done) = 0;
  virtual void SaveTables(const v1::SaveTablesRequest* request, v1::SaveTablesResponse* response,
                          absl::Duration timeout, Done done) = 0;
  virtual void CloseJob(const v1::CloseJobRequest* request, v1::CloseJobResponse* response, absl::Duration timeout,
                        Done done) = 0;

  // Ends every call in flight with Cancelled, and every later one.
  virtual void Cancel() = 0;

  // Keys and rows in one message, at most, so that the messages of a step travel side by side; the least of a client's
  // transports counts.
  virtual uint64_t ChunkBytes() const { return 8 << 20; }
};

// Makes the transport to a server, from the address that it registered with. Unavailable names the address.
using PsTransportFactory = std::function<absl::StatusOr<std::unique_ptr<PsTransport>>(const std::string& address)>;

// TCP streams of a worker to a server. A stream's bytes are copied by one thread at each end, so that one alone leaves
// cores idle while a single large message is under way.
inline constexpr int kConnections = 2;

// By gRPC over kConnections streams; waits at most `connect_timeout` for the connection.
PsTransportFactory GrpcTransportFactory(absl::Duration connect_timeout);

}  // namespace sparrow

#endif  // SPARROW_WORKER_PS_TRANSPORT_H_
