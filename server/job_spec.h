#ifndef SPARROW_SERVER_JOB_SPEC_H_
#define SPARROW_SERVER_JOB_SPEC_H_

// What OpenJob said of a job, checked.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "embedding/partition.h"
#include "embedding/table_config.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

inline constexpr uint32_t kWorkersMax = 1 << 16;
inline constexpr int kTablesMax = 1 << 14;

struct JobSpec {
  std::string job_id;
  uint64_t epoch = 0;
  uint64_t fingerprint = 0;
  uint32_t workers = 0;
  std::vector<TableSpec> tables;
  ShardAssignment shards = ShardAssignment::RowWise(1);
  uint32_t server = 0;       // Which one of `shards` this is.
  std::string restore_from;  // Empty: nothing.
  uint64_t first_step = 0;
  bool prefetch = false;  // Pulls may be ahead of their step.
};

// InvalidArgument names the field and its value; FailedPrecondition if the caller's fingerprint is not that of the
// configuration it sent.
absl::StatusOr<JobSpec> ParseOpenJob(const v1::OpenJobRequest& request);

// OK if a worker that sends `other` means the job that `spec` is; otherwise FailedPrecondition names what differs.
// REQUIRES: equal job and epoch.
absl::Status CheckSameConfiguration(const JobSpec& spec, const JobSpec& other);

}  // namespace sparrow

#endif  // SPARROW_SERVER_JOB_SPEC_H_
