// sparrowctl submit, watch

#include <cstdio>
#include <memory>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "client/cli.h"
#include "client/connect.h"
#include "client/follow_job.h"
#include "client/job_file.h"
#include "client/resume_path.h"
#include "worker/job_check.h"

namespace sparrow {

int SubmitCommand(const Arguments& arguments, Interrupt* interrupt) {
  std::string coordinator = kDefaultCoordinator;
  JobOutputs outputs;
  std::vector<std::string> sets;
  std::string resume;
  bool watch = false;
  const std::vector<Option> options = {
      {"coordinator", AddressFlag{&coordinator, AddressUse::kConnect}, kCoordinatorHelp, false},
      {"watch", &watch, "Stays and shows progress until the job has ended.", false},
      {"set", &sets, "Changes the job: --set train.batch_size=512. May be repeated.", false},
      {"json", &outputs.json, "With --watch: writes the summary to this file as one JSON object.", false},
      {"losses", &outputs.losses, "With --watch: writes the loss curve to this file as CSV: step,loss.", false},
      {"resume", &resume,
       "Goes on from this checkpoint, or the newest whole one of this job's directory, under the members' "
       "--checkpoint-root.",
       false},
  };
  const Usage usage{"sparrowctl submit", "JOB",
                    "Hands the job in the file JOB to a cluster and prints its id. The job's files are looked for "
                    "under the workers'\n"
                    "--data-root. With --watch it behaves as `run` does, but Ctrl-C ends only the watching.",
                    "  sparrowctl submit JOB.textproto --coordinator node1:7070 --watch --json out.json\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  if (!watch && !(outputs.json.empty() && outputs.losses.empty())) {
    Fail(absl::InvalidArgumentError("--json and --losses need --watch: nothing is known of the job before its end"));
    return kExitUsage;
  }
  if (const absl::Status status = CheckOutputs(outputs); !status.ok()) return Fail(status);
  const absl::StatusOr<v1::Job> job = LoadJobFile(positional[0], sets);
  if (!job.ok()) return FailBeforeStart(job.status(), v1::Job(), outputs);
  const absl::Status valid = Annotate(ValidateJob(*job), positional[0]);
  if (!valid.ok()) return FailBeforeStart(valid, *job, outputs);

  const absl::StatusOr<std::unique_ptr<CoordinatorLink>> link = ConnectToCoordinator(coordinator);
  if (!link.ok()) return FailBeforeStart(link.status(), *job, outputs);
  v1::SubmitRequest request;
  *request.mutable_job() = *job;
  request.set_restore_from(ResumePath(resume, /*root=*/""));
  const absl::StatusOr<v1::SubmitResponse> submitted = (*link)->Submit(request);
  if (!submitted.ok()) return FailBeforeStart(submitted.status(), *job, outputs);
  std::printf("submitted %s\n", submitted->job_id().c_str());
  std::fflush(stdout);
  return watch ? FollowRemoteJob(link->get(), submitted->job_id(), outputs, interrupt) : kExitSuccess;
}

int WatchCommand(const Arguments& arguments, Interrupt* interrupt) {
  std::string coordinator = kDefaultCoordinator;
  JobOutputs outputs;
  const std::vector<Option> options = {
      {"coordinator", AddressFlag{&coordinator, AddressUse::kConnect}, kCoordinatorHelp, false},
      {"json", &outputs.json, "Writes the summary to this file as one JSON object.", false},
      {"losses", &outputs.losses, "Writes the loss curve to this file as CSV: step,loss.", false},
  };
  const Usage usage{
      "sparrowctl watch", "JOB_ID",
      "Shows how a job goes until it has ended, then its summary. Ctrl-C ends only the watching. The exit\n"
      "status is 0 only if the job succeeded.",
      "  sparrowctl watch job-1 --coordinator node1:7070\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  if (const absl::Status status = CheckOutputs(outputs); !status.ok()) return Fail(status);
  const absl::StatusOr<std::unique_ptr<CoordinatorLink>> link = ConnectToCoordinator(coordinator);
  if (!link.ok()) return Fail(link.status());
  return FollowRemoteJob(link->get(), positional[0], outputs, interrupt);
}

}  // namespace sparrow
