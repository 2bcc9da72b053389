#ifndef SPARROW_WORKER_TASK_RUNNER_H_
#define SPARROW_WORKER_TASK_RUNNER_H_

#include <string>

#include "coordinator/link.h"
#include "sparrow/v1/coordinator.pb.h"
#include "worker/device.h"
#include "worker/metrics.h"
#include "worker/ps_transport.h"
#include "worker/stop_signal.h"

namespace sparrow {

// What every task of a worker is run with. All pointers outlive the tasks.
struct TaskEnvironment {
  CoordinatorLink* link;
  PsTransportFactory transport_factory;
  std::string data_root;
  std::string checkpoint_root;
  std::string host;
  Device device;
  std::string plan_file;
  int parse_threads = 1;
  const WorkerMetrics* metrics;
  Cancellation* leaving;  // The worker leaves the coordinator: nothing is reported any more.
  // How long it takes the coordinator to notice that another member is gone.
  absl::Duration lease = absl::ZeroDuration();
};

// Runs one task to its end and reports it. An error that may only be the consequence of another member's (Unavailable)
// is held back until the coordinator can have noticed that: then the job has ended by the name of the member that is
// gone, and this end counts as STOPPED.
v1::ReportRequest::End RunTask(const TaskEnvironment& environment, const std::string& member_id, const v1::Task& task,
                               StopSignal* stop);

}  // namespace sparrow

#endif  // SPARROW_WORKER_TASK_RUNNER_H_
