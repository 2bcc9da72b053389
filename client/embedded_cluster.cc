#include "client/embedded_cluster.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/metrics.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "client/direct_transport.h"
#include "client/scratch_directory.h"
#include "coordinator/coordinator.h"
#include "server/server.h"
#include "worker/worker.h"

namespace sparrow {
namespace {

constexpr char kCoordinatorName[] = "this process";  // In messages, for the address of a coordinator without one.

class EmbeddedClusterParts final : public EmbeddedCluster {
 public:
  ~EmbeddedClusterParts() override {
    for (const std::unique_ptr<Worker>& worker : workers_) worker->Stop();
    workers_.clear();
    for (const std::unique_ptr<Server>& server : servers_) server->Stop();
    servers_.clear();
    link_.reset();
    coordinator_.reset();
  }

  absl::Status Start(const EmbeddedClusterOptions& options) {
    if (options.servers == 0 || options.workers == 0) {
      return absl::InvalidArgumentError(absl::StrCat("a cluster of ", options.servers, " servers and ", options.workers,
                                                     " workers; it needs at least one of each"));
    }
    if (options.device != "cpu") {  // Cores are free while GPUs compute; half are left to pushes and to the input.
      ahead_threads_ = std::max(1, Cores() / 2 / static_cast<int>(options.workers));
    }
    // First, so that a port in use is found before anything else is made.
    if (!options.metrics.empty()) {
      ASSIGN_OR_RETURN(metrics_address_, metrics_.Serve(options.metrics));
    }
    std::string scratch = options.scratch;
    if (scratch.empty()) {
      ASSIGN_OR_RETURN(scratch_, ScratchDirectory::Create());
      scratch = scratch_->path();
    }

    CoordinatorOptions coordinator;
    coordinator.listen = "";
    coordinator.state = "";
    ASSIGN_OR_RETURN(coordinator_, Coordinator::Start(coordinator, &metrics_));
    const std::shared_ptr<grpc::Channel> channel = coordinator_->InProcessChannel();
    link_ = std::make_unique<CoordinatorLink>(channel, kCoordinatorName);

    for (uint32_t i = 0; i < options.servers; ++i) {
      ServerOptions server;
      server.coordinator = kCoordinatorName;
      server.coordinator_channel = channel;
      server.listen = options.sockets ? "127.0.0.1:0" : "";
      // Without a socket the address is only a name, by which workers tell the servers apart.
      server.advertise = options.sockets ? "" : ServerName(i);
      server.data = absl::StrCat(scratch, "/server-", i);
      server.checkpoint_root = options.checkpoint_root;
      server.memory_bytes = options.memory_bytes;
      server.disk_bytes = options.disk_bytes;
      ASSIGN_OR_RETURN(std::unique_ptr<Server> started, Server::Start(server, &metrics_));
      servers_.push_back(std::move(started));
    }
    const std::vector<std::string> devices = absl::StrSplit(options.device, ',');
    for (uint32_t i = 0; i < options.workers; ++i) {
      WorkerOptions worker;
      worker.coordinator = kCoordinatorName;
      worker.coordinator_channel = channel;
      worker.device = devices[i % devices.size()];
      worker.plan_file = options.plan_file;
      worker.parse_threads =
          options.parse_threads > 0 ? options.parse_threads : DefaultParseThreads(static_cast<int>(options.workers));
      worker.data_root = options.data_root;
      worker.checkpoint_root = options.checkpoint_root;
      worker.host = "127.0.0.1";
      PsTransportFactory connect = GrpcTransportFactory(worker.connect_timeout);
      if (!options.sockets) connect = [this](const std::string& address) { return TransportTo(address); };
      worker.transport_factory = [connect, wrap = options.wrap_transport](const std::string& address) {
        absl::StatusOr<std::unique_ptr<PsTransport>> transport = connect(address);
        if (transport.ok() && wrap != nullptr) transport = wrap(*std::move(transport));
        return transport;
      };
      ASSIGN_OR_RETURN(std::unique_ptr<Worker> started, Worker::Start(worker, &metrics_));
      workers_.push_back(std::move(started));
    }
    return absl::OkStatus();
  }

  CoordinatorLink* link() override { return link_.get(); }
  std::string metrics_address() const override { return metrics_address_; }
  Metrics* metrics() override { return &metrics_; }
  Shard* shard(uint32_t server) override { return servers_[server]->shard(); }

 private:
  static std::string ServerName(uint32_t index) { return absl::StrCat("inprocess:", index); }

  // Called by workers, which start after the last server and stop before the first: servers_ does not change meanwhile.
  absl::StatusOr<std::unique_ptr<PsTransport>> TransportTo(const std::string& address) {
    for (const std::unique_ptr<Server>& server : servers_) {
      if (server->address() == address) return MakeDirectTransport(server->shard(), ahead_threads_);
    }
    return absl::UnavailableError(absl::StrCat("no server at ", address, " in this process"));
  }

  Metrics metrics_;
  int ahead_threads_ = 1;
  std::string metrics_address_;
  std::unique_ptr<ScratchDirectory> scratch_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<CoordinatorLink> link_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddedCluster>> EmbeddedCluster::Start(const EmbeddedClusterOptions& options) {
  auto cluster = std::make_unique<EmbeddedClusterParts>();
  RETURN_IF_ERROR(cluster->Start(options));
  return cluster;
}

}  // namespace sparrow
