#ifndef SPARROW_SERVER_SERVICE_H_
#define SPARROW_SERVER_SERVICE_H_

// A Shard on the wire: sparrow.v1.ParameterServer by gRPC's callback API. A pull that waits holds no thread, and ends
// when its caller cancels it. Opening, saving and closing, which may take long, run on threads of the service's own, so
// that they do not hold up pulls and pushes.

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "server/shard.h"

namespace sparrow {

// `shard` outlives the service; the gRPC server that serves it ends before the service does.
std::unique_ptr<grpc::Service> MakeParameterServerService(Shard* shard);

}  // namespace sparrow

#endif  // SPARROW_SERVER_SERVICE_H_
