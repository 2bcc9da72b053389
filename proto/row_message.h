#ifndef SPARROW_PROTO_ROW_MESSAGE_H_
#define SPARROW_PROTO_ROW_MESSAGE_H_

// The messages that carry rows (sparrow/v1/parameter_server.proto), straight between their wire form and the memory
// where the rows lie: what is sent are slices that point there, what comes is read out of gRPC's slices. The bytes are
// those of the generated code, field for field.

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// The response is held until gRPC has let go of every slice, and does not change meanwhile.
grpc::ByteBuffer EncodePullResponse(std::shared_ptr<const v1::PullResponse> response);

// `head` has all but gradients and records: `beside` has those of its tables and then those of its records, as bytes.
// Copies of `owner` are held until gRPC has let go of them.
// REQUIRES: beside.size() == head.tables_size() + head.records_size(), whose own `gradients` and `records` are empty.
grpc::ByteBuffer EncodePushRequest(const v1::PushRequest& head,
                                   std::span<const std::span<const char>> beside /*[head.tables, head.records]*/,
                                   const std::shared_ptr<const void>& owner);

// What one table of a PullResponse must be.
struct RowsAsked {
  uint32_t table = 0;
  uint64_t rows = 0;
  uint64_t row_bytes = 0;  // Of one row; of no meaning without rows.
};
// Takes the rows [first, first + n) of the entry, whose bytes may have any address.
using RowSink = absl::FunctionRef<void(size_t entry, uint64_t first, uint64_t n, const char* bytes)>;

// Gives all rows to `sink`, and the rest of the message to `head`. Internal if the bytes are no PullResponse, or one
// for other tables, rows or another row type than were asked for (it names both); rows may have gone to the sink then.
// Takes any legal encoding. Allocates nothing from a length that it reads and has not checked.
absl::Status DecodePullResponse(const grpc::ByteBuffer& buffer, std::span<const RowsAsked> asked, v1::RowType type,
                                RowSink sink, v1::PullResponse* head);

}  // namespace sparrow

#endif  // SPARROW_PROTO_ROW_MESSAGE_H_
