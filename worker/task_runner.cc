#include "worker/task_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/rendezvous.h"
#include "worker/reporter.h"
#include "worker/trainer.h"

namespace sparrow {
namespace {

// What the coordinator needs, after a member's end or the end of its lease, to tell the others by a heartbeat.
constexpr absl::Duration kHoldBack = absl::Seconds(2);

absl::StatusOr<std::vector<PsServer>> ConnectServers(const TaskEnvironment& environment, const v1::Task& task) {
  std::vector<PsServer> servers;
  for (const std::string& address : task.server_addresses()) {
    absl::StatusOr<std::unique_ptr<PsTransport>> transport = environment.transport_factory(address);
    if (!transport.ok()) return Annotate(transport.status(), absl::StrCat("parameter server ", servers.size()));
    servers.push_back({.address = address, .transport = std::move(*transport)});
  }
  return servers;
}

void ReportEnd(Reporter* reporter, const v1::Task& task, v1::ReportRequest::End end, const std::string& error,
               const v1::Summary* summary) {
  const absl::Status reported = reporter->End(end, error, summary);
  if (!reported.ok() && !absl::IsCancelled(reported)) {
    LOG(WARNING) << task.job_id() << ": its end could not be reported: " << reported.message();
  }
}

}  // namespace

v1::ReportRequest::End RunTask(const TaskEnvironment& environment, const std::string& member_id, const v1::Task& task,
                               StopSignal* stop) {
  LOG(INFO) << task.job_id() << " (" << task.job().name() << "): started as rank " << task.rank() << " of "
            << task.workers() << " with " << task.server_addresses_size() << " parameter servers";
  environment.metrics->job_running.Set(1);
  Reporter reporter(environment.link, member_id, task, stop, environment.leaving);
  CoordinatorBoard board(environment.link, task, stop);

  const auto report_failure = [&](const absl::Status& status) {
    if (stop->stopped() || absl::IsCancelled(status)) return;
    if (absl::IsUnavailable(status) && stop->WaitFor(environment.lease + kHoldBack)) return;
    LOG(INFO) << task.job_id() << ": " << status.message();  // The job fails, not the worker.
    ReportEnd(&reporter, task, v1::ReportRequest::FAILED, std::string(status.message()), nullptr);
  };

  absl::StatusOr<v1::Summary> summary = v1::Summary();
  absl::StatusOr<std::vector<PsServer>> servers = ConnectServers(environment, task);
  if (servers.ok()) {
    summary = RunTraining({.task = task,
                           .data_root = environment.data_root,
                           .checkpoint_root = environment.checkpoint_root,
                           .device = environment.device,
                           .plan_file = environment.plan_file,
                           .parse_threads = environment.parse_threads,
                           .servers = std::move(*servers),
                           .meet = [&] { return MeetWorkers(task, environment.host, &board); },
                           .board = &board,
                           .client = {}},
                          *environment.metrics, &reporter, stop, report_failure);
  } else {
    summary = servers.status();
    report_failure(servers.status());
  }

  v1::ReportRequest::End end = v1::ReportRequest::SUCCEEDED;
  if (summary.ok()) {
    ReportEnd(&reporter, task, end, "", &*summary);
    environment.metrics->jobs_succeeded.Increment();
  } else if (stop->stopped()) {
    end = v1::ReportRequest::STOPPED;
    ReportEnd(&reporter, task, end, "", nullptr);  // Does nothing if a failure has been reported before the stop.
    environment.metrics->jobs_stopped.Increment();
  } else {
    end = v1::ReportRequest::FAILED;
    environment.metrics->jobs_failed.Increment();
  }
  LOG(INFO) << task.job_id() << ": " << v1::ReportRequest::End_Name(end);
  environment.metrics->job_running.Set(0);
  return end;
}

}  // namespace sparrow
