#include "client/connect.h"

#include "absl/strings/str_cat.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<CoordinatorLink>> ConnectToCoordinator(const std::string& address) {
  absl::StatusOr<std::unique_ptr<CoordinatorLink>> link = CoordinatorLink::Connect(address, absl::Seconds(3));
  if (link.ok() || link.status().code() != absl::StatusCode::kUnavailable) return link;
  return absl::UnavailableError(absl::StrCat(link.status().message(),
                                             "; check --coordinator, or start one with sparrow-coordinator --listen ",
                                             address, ", or train without a cluster: sparrowctl run"));
}

}  // namespace sparrow
