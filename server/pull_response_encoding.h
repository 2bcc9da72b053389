#ifndef SPARROW_SERVER_PULL_RESPONSE_ENCODING_H_
#define SPARROW_SERVER_PULL_RESPONSE_ENCODING_H_

#include <grpcpp/support/byte_buffer.h>

#include <memory>

#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// What protobuf would write for `response`, as a buffer whose slices point into the response's rows instead of copying
// them. The buffer and gRPC keep the response until the last slice is sent, which may be on any thread and after the
// call has ended; its deleter runs then.
grpc::ByteBuffer EncodePullResponse(std::shared_ptr<const v1::PullResponse> response);

}  // namespace sparrow

#endif  // SPARROW_SERVER_PULL_RESPONSE_ENCODING_H_
