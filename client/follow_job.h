#ifndef SPARROW_CLIENT_FOLLOW_JOB_H_
#define SPARROW_CLIENT_FOLLOW_JOB_H_

// Watching a job to its end, and telling how it ended.

#include <string>

#include "absl/status/status.h"
#include "base/interrupt.h"
#include "coordinator/link.h"
#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

// Files that a command writes about a job; empty: not written.
struct JobOutputs {
  std::string json;    // SummaryJson
  std::string losses;  // LossesCsv
};

// Checks that they can be written.
absl::Status CheckOutputs(const JobOutputs& outputs);

// Shows progress on stdout until the job has ended, then prints its summary and writes its outputs; a failed job's
// reason goes to stderr. Returns the exit status: 0 only for SUCCEEDED.
int FollowJob(CoordinatorLink* link, const std::string& job_id, const JobOutputs& outputs);

// FollowJob of a job that is not ours: at a signal it says that the job goes on and ends the process.
int FollowRemoteJob(CoordinatorLink* link, const std::string& job_id, const JobOutputs& outputs, Interrupt* interrupt);

// Of a job that did not get as far as a coordinator, empty if not even its file could be read: prints the error, writes
// outputs that say FAILED and why. Returns the exit status.
int FailBeforeStart(const absl::Status& status, const v1::Job& job, const JobOutputs& outputs);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_FOLLOW_JOB_H_
