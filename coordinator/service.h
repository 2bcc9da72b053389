#ifndef SPARROW_COORDINATOR_SERVICE_H_
#define SPARROW_COORDINATOR_SERVICE_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <memory>

#include "coordinator/control_plane.h"
#include "coordinator/metrics.h"

namespace sparrow {

// coordinator.proto's service, on gRPC's callback API: a call that waits (GetRendezvous, WatchJob) holds no thread. The
// arguments outlive it.
std::unique_ptr<grpc::Service> MakeCoordinatorService(ControlPlane* plane, const CoordinatorMetrics* metrics);

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_SERVICE_H_
