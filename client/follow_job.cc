#include "client/follow_job.h"

#include <unistd.h>

#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "client/cli.h"
#include "client/progress.h"
#include "client/summary.h"

namespace sparrow {
namespace {

absl::Status WriteOutputs(const v1::JobStatus& status, const JobOutputs& outputs) {
  if (!outputs.json.empty()) RETURN_IF_ERROR(WriteFileAtomically(outputs.json, SummaryJson(status)));
  if (!outputs.losses.empty()) RETURN_IF_ERROR(WriteFileAtomically(outputs.losses, LossesCsv(status)));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOutputs(const JobOutputs& outputs) {
  RETURN_IF_ERROR(CheckWritable("--json", outputs.json));
  return CheckWritable("--losses", outputs.losses);
}

int FollowJob(CoordinatorLink* link, const std::string& job_id, const JobOutputs& outputs) {
  absl::Status watched;
  {
    ProgressView view(stdout, isatty(STDOUT_FILENO) != 0);
    watched = link->WatchJob(job_id, [&](const v1::JobStatus& status) {
      view.Update(status, absl::Now());
      return true;
    });
  }
  if (watched.code() == absl::StatusCode::kNotFound) return Fail(watched);
  if (!watched.ok()) {
    return Fail(absl::UnavailableError(absl::StrCat(watched.message(), "; the job may go on: sparrowctl watch ", job_id,
                                                    " --coordinator ", link->address())));
  }
  // The watched statuses have no loss curve.
  absl::StatusOr<v1::GetJobResponse> ended = link->GetJob(job_id);
  if (!ended.ok()) return Fail(ended.status());
  FillInFromJob(ended->job(), ended->mutable_status());
  const v1::JobStatus& status = ended->status();
  std::fputs(SummaryText(status).c_str(), stdout);
  std::fflush(stdout);
  const absl::Status written = WriteOutputs(status, outputs);
  if (status.state() != v1::JobStatus::SUCCEEDED) {
    return Fail(absl::AbortedError(absl::StrCat("job ", status.name(), " (", job_id, ") ",
                                                status.state() == v1::JobStatus::CANCELLED ? "was cancelled" : "failed",
                                                status.message().empty() ? "" : ": ", status.message())));
  }
  return written.ok() ? kExitSuccess : Fail(written);
}

int FollowRemoteJob(CoordinatorLink* link, const std::string& job_id, const JobOutputs& outputs, Interrupt* interrupt) {
  const std::string note = absl::StrCat(
      "\nno longer watching; ", job_id, " goes on.\n  watch again: sparrowctl watch ", job_id, " --coordinator ",
      link->address(), "\n  cancel it:   sparrowctl cancel ", job_id, " --coordinator ", link->address(), "\n");
  interrupt->SetAction([note](int signal) {
    std::fputs(note.c_str(), stdout);
    std::fflush(stdout);
    // The main thread sits in a call that may have nothing to say for long; there is nothing to clean up.
    _exit(128 + signal);
  });
  const int exit_status = FollowJob(link, job_id, outputs);
  interrupt->SetAction(nullptr);
  return exit_status;
}

int FailBeforeStart(const absl::Status& status, const v1::Job& job, const JobOutputs& outputs) {
  v1::JobStatus failed;
  failed.set_name(job.name());
  FillInFromJob(job, &failed);
  failed.set_state(v1::JobStatus::FAILED);
  failed.set_message(std::string(status.message()));
  const int exit_status = Fail(status);
  const absl::Status written = WriteOutputs(failed, outputs);
  if (!written.ok()) Fail(written);
  return exit_status;
}

}  // namespace sparrow
