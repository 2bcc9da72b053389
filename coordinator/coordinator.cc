#include "coordinator/coordinator.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/rpc.h"
#include "base/status_macros.h"
#include "coordinator/control_plane.h"
#include "coordinator/metrics.h"
#include "coordinator/service.h"
#include "coordinator/state_store.h"

namespace sparrow {
namespace {

// Calls under way have this long to end by themselves when the coordinator stops.
constexpr absl::Duration kDrain = absl::Milliseconds(500);

class Daemon final : public Coordinator {
 public:
  Daemon(const CoordinatorOptions& options, Metrics* metrics)
      : tick_(std::clamp(options.heartbeat / 5, absl::Milliseconds(5), absl::Milliseconds(100))), metrics_(metrics) {}
  ~Daemon() override {
    Stop();
    ShutDown(&in_process_);
  }

  absl::Status Open(const CoordinatorOptions& options, Metrics* metrics) {
    ASSIGN_OR_RETURN(store_, StateStore::Open(options.state));
    ASSIGN_OR_RETURN(
        plane_, ControlPlane::Create({.lease = options.lease, .heartbeat = options.heartbeat, .clock = options.clock},
                                     store_.get(), &metrics_));
    in_process_service_ = MakeCoordinatorService(plane_.get(), &metrics_);
    ASSIGN_OR_RETURN(in_process_, StartGrpcServer("", {in_process_service_.get()}));
    if (!options.listen.empty()) {
      service_ = MakeCoordinatorService(plane_.get(), &metrics_);
      ASSIGN_OR_RETURN(listening_, StartGrpcServer(options.listen, {service_.get()}));
    }
    if (!options.metrics.empty()) {
      ASSIGN_OR_RETURN(metrics_address_, metrics->Serve(options.metrics));
    }
    absl::MutexLock lock(&stop_mu_);
    ticker_ = std::thread([this] { RunTicker(); });
    return absl::OkStatus();
  }

  const std::string& address() const override { return listening_.address; }
  const std::string& metrics_address() const override { return metrics_address_; }

  std::shared_ptr<grpc::Channel> InProcessChannel() override {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
    arguments.SetMaxSendMessageSize(kMessageBytesMax);
    return in_process_.server->InProcessChannel(arguments);
  }

  void Stop() override {
    absl::MutexLock stop_lock(&stop_mu_);
    if (std::exchange(stopped_, true)) return;
    if (plane_ != nullptr) plane_->ShutDown();
    ShutDown(&listening_);
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    if (ticker_.joinable()) ticker_.join();
  }

 private:
  static void ShutDown(ListeningServer* listening) {
    if (listening->server == nullptr) return;
    listening->server->Shutdown(DeadlineAfter(kDrain));
    listening->server->Wait();
  }

  void RunTicker() {
    for (;;) {
      {
        absl::MutexLock lock(&mu_);
        if (mu_.AwaitWithTimeout(absl::Condition(&stopping_), tick_)) return;
      }
      plane_->Tick();
    }
  }

  const absl::Duration tick_;
  const CoordinatorMetrics metrics_;
  // Constant once opened. Destroyed in reverse: the server before what it calls.
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<ControlPlane> plane_;
  // Apart from the one with a socket, since gRPC 1.51 crashes in a call on an in-process channel whose server has shut
  // down: this one stays until the coordinator is destroyed, and answers Unavailable after Stop.
  std::unique_ptr<grpc::Service> in_process_service_;
  ListeningServer in_process_;
  std::unique_ptr<grpc::Service> service_;
  ListeningServer listening_;
  std::string metrics_address_;

  absl::Mutex stop_mu_;  // Held throughout Stop, so that a second caller returns after the first has finished.
  bool stopped_ ABSL_GUARDED_BY(stop_mu_) = false;
  std::thread ticker_ ABSL_GUARDED_BY(stop_mu_);

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(const CoordinatorOptions& options, Metrics* metrics) {
  if (options.heartbeat < absl::Milliseconds(10) || options.lease < 2 * options.heartbeat) {
    return absl::InvalidArgumentError(
        absl::StrCat("the lease is ", absl::FormatDuration(options.lease), " and the heartbeat ",
                     absl::FormatDuration(options.heartbeat),
                     "; a heartbeat has to be at least 10ms, and a lease at least two heartbeats long"));
  }
  auto daemon = std::make_unique<Daemon>(options, metrics);
  RETURN_IF_ERROR(daemon->Open(options, metrics));
  return daemon;
}

}  // namespace sparrow
