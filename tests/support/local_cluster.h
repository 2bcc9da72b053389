#ifndef SPARROW_TESTS_SUPPORT_LOCAL_CLUSTER_H_
#define SPARROW_TESTS_SUPPORT_LOCAL_CLUSTER_H_

// A coordinator, servers and workers as processes of their own on this machine's loopback, started as the README says.

#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {

struct LocalClusterOptions {
  int servers = 1;
  int workers = 1;
  std::string data_root = ".";
  std::string server_memory = "256MiB";
  std::string device = "cpu";             // Of all workers,
  std::vector<std::string> devices = {};  // or of each.
  bool shared_checkpoint_root = true;     // false: the last server has one of its own.
};

// Members write under a temporary directory. Destruction kills what still runs.
class LocalCluster {
 public:
  // Starts the coordinator, then everything else, and waits until all have joined; CHECKs that they do.
  explicit LocalCluster(const LocalClusterOptions& options);

  const std::string& coordinator() const { return coordinator_address_; }  // HOST:PORT
  const std::string& directory() const { return directory_.path(); }
  ChildProcess* coordinator_process() { return coordinator_.get(); }
  std::vector<std::unique_ptr<ChildProcess>>& servers() { return servers_; }
  std::vector<std::unique_ptr<ChildProcess>>& workers() { return workers_; }
  // Starts a member anew, as it was started, after its end, and waits until it has joined.
  void RestartServer(size_t i) { servers_[i] = StartMember(server_arguments_[i], kServerReady); }
  void RestartWorker(size_t i) { workers_[i] = StartMember(worker_arguments_[i], kWorkerReady); }
  std::string checkpoints() const { return directory_.File("checkpoints"); }
  // HOST:PORT of /metrics: coordinator, then servers, then workers; of members that were started anew behind them.
  const std::vector<std::string>& metrics() const { return metrics_; }

 private:
  static constexpr char kServerReady[] = "sparrow-server listening on ";
  static constexpr char kWorkerReady[] = "sparrow-worker joined ";

  std::unique_ptr<ChildProcess> StartMember(const std::vector<std::string>& arguments, const std::string& ready);

  TemporaryDirectory directory_;
  std::string coordinator_address_;
  std::unique_ptr<ChildProcess> coordinator_;
  std::vector<std::vector<std::string>> server_arguments_;
  std::vector<std::vector<std::string>> worker_arguments_;
  std::vector<std::unique_ptr<ChildProcess>> servers_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
  std::vector<std::string> metrics_;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_LOCAL_CLUSTER_H_
