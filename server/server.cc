#include "server/server.h"

#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rpc.h"
#include "base/status_macros.h"
#include "coordinator/link.h"
#include "server/service.h"
#include "server/shard.h"

namespace sparrow {
namespace {

constexpr absl::Duration kCallsEndWithin = absl::Seconds(2);  // After Stop, before they are cut off.

// Where workers find a server that is bound to `bound`.
absl::StatusOr<std::string> Advertised(const ServerOptions& options, const std::string& bound) {
  if (!options.advertise.empty()) return options.advertise;
  if (bound.empty()) return absl::InvalidArgumentError("a server without --listen needs --advertise, its name");
  if (absl::StartsWith(bound, "unix:")) {
    return absl::StrCat("unix:", std::filesystem::absolute(bound.substr(5)).string());  // Workers start elsewhere.
  }
  const size_t colon = bound.rfind(':');
  const std::string host = bound.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]" && host != "*") return bound;
  ASSIGN_OR_RETURN(const std::string own, LocalHostTowards(options.coordinator));
  return absl::StrCat(own, bound.substr(colon));
}

class ShardServer final : public Server {
 public:
  ~ShardServer() override {
    Stop();
    grpc_.server.reset();
    service_.reset();
  }

  // At most once, before all else.
  absl::Status Start(const ServerOptions& options, Metrics* metrics) {
    RETURN_IF_ERROR(CheckDirectoryOrNew("--checkpoint-root", options.checkpoint_root));
    ASSIGN_OR_RETURN(shard_, Shard::Create({.data = options.data,
                                            .checkpoint_root = options.checkpoint_root,
                                            .memory_bytes = options.memory_bytes,
                                            .disk_bytes = options.disk_bytes,
                                            .message_bytes_max = kMessageBytesMax},
                                           metrics));
    service_ = MakeParameterServerService(shard_.get());
    ASSIGN_OR_RETURN(grpc_, StartGrpcServer(options.listen, {service_.get()}, Traffic::kRows));
    if (!options.metrics.empty()) {
      ASSIGN_OR_RETURN(metrics_address_, metrics->Serve(options.metrics));
    }
    if (options.coordinator_channel != nullptr) {
      link_ = std::make_unique<CoordinatorLink>(options.coordinator_channel, options.coordinator);
    } else {
      ASSIGN_OR_RETURN(link_, CoordinatorLink::Connect(options.coordinator, options.connect_timeout));
    }
    ASSIGN_OR_RETURN(address_, Advertised(options, grpc_.address));
    return Join(options);
  }

  const std::string& address() const override { return address_; }
  const std::string& listen_address() const override { return grpc_.address; }
  const std::string& metrics_address() const override { return metrics_address_; }
  Shard* shard() override { return shard_.get(); }

  void Stop() override {
    absl::call_once(stop_once_, [this] {
      // First, so that jobs learn from the coordinator why this server went.
      if (membership_ != nullptr) membership_->Stop("the server was stopped");
      if (shard_ != nullptr) shard_->Shutdown();
      if (grpc_.server != nullptr) grpc_.server->Shutdown(DeadlineAfter(kCallsEndWithin));
      absl::MutexLock lock(&mu_);
      stopped_ = true;
    });
  }

  absl::Status WaitUntilStopped() override {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &ShardServer::Over));
    return lost_;
  }

 private:
  absl::Status Join(const ServerOptions& options) {
    Membership::Options membership;
    membership.registration.set_kind(v1::SERVER);
    membership.registration.set_address(address_);
    membership.registration.set_memory_bytes(options.memory_bytes);
    membership.registration.set_metrics_address(metrics_address_);
    // Both run on the membership's thread, one after the other.
    membership.before_heartbeat = [this](v1::HeartbeatRequest* request) {
      opened_before_heartbeat_ = shard_->opened();
      const Shard::Usage usage = shard_->GetUsage();
      request->set_rows(usage.rows);
      request->set_memory_used_bytes(usage.memory_bytes);
    };
    membership.on_heartbeat = [this](const v1::HeartbeatResponse& response) {
      shard_->KeepOnly({response.live_job_ids().begin(), response.live_job_ids().end()}, opened_before_heartbeat_);
    };
    membership.on_lost = [this](absl::Status status) {
      absl::MutexLock lock(&mu_);
      lost_ = std::move(status);
    };
    ASSIGN_OR_RETURN(membership_, Membership::Start(link_.get(), std::move(membership)));
    LOG(INFO) << membership_->member_id() << " serves at " << address_;
    return absl::OkStatus();
  }

  bool Over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_ || !lost_.ok(); }

  // Set by Start.
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<grpc::Service> service_;
  ListeningServer grpc_;
  std::string address_;
  std::string metrics_address_;
  std::unique_ptr<CoordinatorLink> link_;

  uint64_t opened_before_heartbeat_ = 0;  // The membership's thread alone.

  absl::once_flag stop_once_;
  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<Membership> membership_;  // Last: its thread uses the others.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Metrics* metrics) {
  auto server = std::make_unique<ShardServer>();
  RETURN_IF_ERROR(server->Start(options, metrics));
  return server;
}

}  // namespace sparrow
