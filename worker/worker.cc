#include "worker/worker.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "coordinator/link.h"
#include "worker/device.h"
#include "worker/metrics.h"
#include "worker/stop_signal.h"
#include "worker/task_runner.h"

namespace sparrow {
namespace {

class WorkerDaemon final : public Worker {
 public:
  WorkerDaemon(const WorkerOptions& options, Metrics* metrics) : options_(options), metrics_(metrics) {}
  ~WorkerDaemon() override { Stop(); }

  absl::Status Join(Metrics* metrics);

  void Stop() override;
  absl::Status WaitUntilStopped() override {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](std::optional<absl::Status>* ended) { return ended->has_value(); }, &ended_));
    return *ended_;
  }
  std::string member_id() const override { return membership_->member_id(); }
  const std::string& coordinator() const override { return link_->address(); }
  const std::string& metrics_address() const override { return metrics_address_; }

 private:
  void OnHeartbeat(const v1::HeartbeatResponse& response);
  void OnLost(const absl::Status& reason);
  void RunTasks();

  static bool SameTask(const v1::Task& a, const v1::Task& b) {
    return a.job_id() == b.job_id() && a.epoch() == b.epoch();
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || wanted_.has_value(); }

  const WorkerOptions options_;
  const WorkerMetrics metrics_;
  std::string metrics_address_;
  std::unique_ptr<CoordinatorLink> link_;
  TaskEnvironment environment_;
  std::unique_ptr<Membership> membership_;
  Cancellation leaving_;
  std::thread thread_;  // Runs the tasks.

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::Task> wanted_ ABSL_GUARDED_BY(mu_);  // To run next.
  std::optional<v1::Task> running_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::Task> finished_ ABSL_GUARDED_BY(mu_);  // Last; a heartbeat's answer may name it once more.
  StopSignal* stop_running_ ABSL_GUARDED_BY(mu_) = nullptr;

  absl::Mutex stop_mu_;  // Held throughout Stop, so that a second caller returns after the first has finished.
};

absl::Status WorkerDaemon::Join(Metrics* metrics) {
  ASSIGN_OR_RETURN(const Device device, ParseDevice(options_.device));
  RETURN_IF_ERROR(CheckDirectory("--data-root", options_.data_root));
  RETURN_IF_ERROR(CheckDirectoryOrNew("--checkpoint-root", options_.checkpoint_root));
  if (!options_.metrics.empty()) {
    ASSIGN_OR_RETURN(metrics_address_, metrics->Serve(options_.metrics));
  }
  std::string host = options_.host;
  if (options_.coordinator_channel != nullptr) {
    link_ = std::make_unique<CoordinatorLink>(options_.coordinator_channel, options_.coordinator);
    if (host.empty()) host = "127.0.0.1";
  } else {
    ASSIGN_OR_RETURN(link_, CoordinatorLink::Connect(options_.coordinator, options_.connect_timeout));
    if (host.empty()) {
      ASSIGN_OR_RETURN(host, LocalHostTowards(options_.coordinator));
    }
  }
  environment_ = {.link = link_.get(),
                  .transport_factory = options_.transport_factory != nullptr
                                           ? options_.transport_factory
                                           : GrpcTransportFactory(options_.connect_timeout),
                  .data_root = options_.data_root,
                  .checkpoint_root = options_.checkpoint_root,
                  .host = host,
                  .device = device,
                  .plan_file = options_.plan_file,
                  .parse_threads = options_.parse_threads > 0 ? static_cast<int>(options_.parse_threads)
                                                              : DefaultParseThreads(/*workers=*/1),
                  .metrics = &metrics_,
                  .leaving = &leaving_};
  Membership::Options membership;
  membership.registration.set_kind(v1::WORKER);
  membership.registration.set_address(host);
  membership.registration.set_device(options_.device);
  membership.registration.set_metrics_address(metrics_address_);
  membership.before_heartbeat = [this](v1::HeartbeatRequest* request) {
    absl::MutexLock lock(&mu_);
    if (running_.has_value()) {
      request->set_job_id(running_->job_id());
    } else if (wanted_.has_value()) {
      request->set_job_id(wanted_->job_id());
    }
  };
  membership.on_heartbeat = [this](const v1::HeartbeatResponse& response) { OnHeartbeat(response); };
  membership.on_lost = [this](absl::Status reason) { OnLost(reason); };
  ASSIGN_OR_RETURN(membership_, Membership::Start(link_.get(), std::move(membership)));
  thread_ = std::thread(&WorkerDaemon::RunTasks, this);
  return absl::OkStatus();
}

void WorkerDaemon::Stop() {
  absl::MutexLock stop_lock(&stop_mu_);
  // Leaves first: the job then fails because this worker has left, and not because of what the others see of it.
  if (membership_ != nullptr) membership_->Stop("it was stopped");
  leaving_.Cancel();
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    if (stop_running_ != nullptr) stop_running_->Stop();
  }
  if (thread_.joinable()) thread_.join();
  absl::MutexLock lock(&mu_);
  if (!ended_.has_value()) ended_ = absl::OkStatus();
}

void WorkerDaemon::OnHeartbeat(const v1::HeartbeatResponse& response) {
  absl::MutexLock lock(&mu_);
  if (running_.has_value() && !(response.has_task() && SameTask(response.task(), *running_))) {
    if (!stop_running_->stopped()) LOG(INFO) << running_->job_id() << ": the coordinator has taken the task away";
    stop_running_->Stop();
  }
  wanted_.reset();
  if (!response.has_task()) return;
  const v1::Task& task = response.task();
  const bool known =
      (running_.has_value() && SameTask(task, *running_)) || (finished_.has_value() && SameTask(task, *finished_));
  if (!known) wanted_ = task;
}

void WorkerDaemon::OnLost(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  if (stop_running_ != nullptr) stop_running_->Stop();
  wanted_.reset();
  if (!ended_.has_value()) ended_ = reason;
}

void WorkerDaemon::RunTasks() {
  for (;;) {
    StopSignal stop;
    v1::Task task;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &WorkerDaemon::HasWork));
      if (stopping_) return;
      task = std::move(*wanted_);
      wanted_.reset();
      running_ = task;
      stop_running_ = &stop;
    }
    environment_.lease = membership_->lease();
    RunTask(environment_, membership_->member_id(), task, &stop);
    {
      absl::MutexLock lock(&mu_);
      finished_ = std::move(running_);
      running_.reset();
      stop_running_ = nullptr;
    }
    membership_->Nudge();  // For the next task.
  }
}

}  // namespace

int DefaultParseThreads(int workers) { return std::clamp(Cores() / 2 / workers, 1, 8); }

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const WorkerOptions& options, Metrics* metrics) {
  auto worker = std::make_unique<WorkerDaemon>(options, metrics);
  RETURN_IF_ERROR(worker->Join(metrics));
  return worker;
}

}  // namespace sparrow
