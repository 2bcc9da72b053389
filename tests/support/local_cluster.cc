#include "tests/support/local_cluster.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace sparrow {

LocalCluster::LocalCluster(const LocalClusterOptions& options) {
  coordinator_ = std::make_unique<ChildProcess>(
      std::vector<std::string>{ProgramPath("sparrow-coordinator"), "--listen", "127.0.0.1:0", "--state",
                               directory_.File("state"), "--metrics", "127.0.0.1:0"});
  const std::optional<std::string> address = coordinator_->WaitForOutput("sparrow-coordinator listening on ");
  CHECK(address.has_value()) << "no coordinator: " << coordinator_->Stderr();
  coordinator_address_ = *address;
  const std::optional<std::string> metrics = coordinator_->WaitForOutput("metrics on ");
  CHECK(metrics.has_value()) << coordinator_->Stdout();
  metrics_.push_back(*metrics);

  for (int i = 0; i < options.servers; ++i) {
    const bool own_root = !options.shared_checkpoint_root && i + 1 == options.servers;
    server_arguments_.push_back(
        {ProgramPath("sparrow-server"), "--coordinator", coordinator_address_, "--listen", "127.0.0.1:0", "--data",
         directory_.File(absl::StrCat("server-", i)), "--memory", options.server_memory, "--checkpoint-root",
         own_root ? directory_.File("own-checkpoints") : checkpoints(), "--metrics", "127.0.0.1:0"});
    servers_.push_back(StartMember(server_arguments_.back(), kServerReady));
  }
  for (int i = 0; i < options.workers; ++i) {
    worker_arguments_.push_back({ProgramPath("sparrow-worker"), "--coordinator", coordinator_address_, "--device",
                                 options.devices.empty() ? options.device : options.devices[static_cast<size_t>(i)],
                                 "--data-root", options.data_root, "--checkpoint-root", checkpoints(), "--metrics",
                                 "127.0.0.1:0"});
    workers_.push_back(StartMember(worker_arguments_.back(), kWorkerReady));
  }
}

std::unique_ptr<ChildProcess> LocalCluster::StartMember(const std::vector<std::string>& arguments,
                                                        const std::string& ready) {
  auto member = std::make_unique<ChildProcess>(arguments);
  CHECK(member->WaitForOutput(ready).has_value()) << arguments[0] << ": " << member->Stderr();
  const std::optional<std::string> metrics = member->WaitForOutput("metrics on ");
  CHECK(metrics.has_value()) << arguments[0] << ": " << member->Stdout();
  metrics_.push_back(*metrics);
  return member;
}

}  // namespace sparrow
