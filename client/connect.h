#ifndef SPARROW_CLIENT_CONNECT_H_
#define SPARROW_CLIENT_CONNECT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/link.h"

namespace sparrow {

inline constexpr char kDefaultCoordinator[] = "127.0.0.1:7070";
inline constexpr char kCoordinatorHelp[] = "HOST:PORT of the cluster's coordinator.";

// Waits 3 s at most; the error says how a coordinator is started.
absl::StatusOr<std::unique_ptr<CoordinatorLink>> ConnectToCoordinator(const std::string& address);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_CONNECT_H_
