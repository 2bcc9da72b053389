#include "client/run_embedded.h"

#include <cstdio>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "client/cli.h"

namespace sparrow {

int RunEmbedded(v1::Job job, const EmbeddedClusterOptions& options, const std::string& resume,
                const JobOutputs& outputs, Interrupt* interrupt) {
  absl::StatusOr<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Start(options);
  if (!cluster.ok()) return FailBeforeStart(cluster.status(), job, outputs);
  CoordinatorLink* link = (*cluster)->link();
  if (!(*cluster)->metrics_address().empty()) {
    std::printf("metrics on http://%s/metrics\n", (*cluster)->metrics_address().c_str());
  }

  // Exactly the members of this process.
  job.mutable_cluster()->set_workers(options.workers);
  job.mutable_cluster()->set_servers(options.servers);
  v1::SubmitRequest request;
  *request.mutable_job() = job;
  request.set_restore_from(resume);
  const absl::StatusOr<v1::SubmitResponse> submitted = link->Submit(request);
  if (!submitted.ok()) return FailBeforeStart(submitted.status(), job, outputs);

  interrupt->SetAction([link, job_id = submitted->job_id()](int) {
    const absl::Status cancelled = link->CancelJob(job_id);
    if (!cancelled.ok()) Fail(cancelled);
  });
  // Before the cluster, which the action uses, is gone.
  absl::Cleanup clear = [interrupt] { interrupt->SetAction(nullptr); };
  const int exit_status = FollowJob(link, submitted->job_id(), outputs);
  return exit_status != kExitSuccess && interrupt->signal() != 0 ? 128 + interrupt->signal() : exit_status;
}

}  // namespace sparrow
