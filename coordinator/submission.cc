#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs.h"
#include "coordinator/text.h"
#include "embedding/partition.h"

namespace sparrow {
namespace {

constexpr size_t kNameBytesMax = 128;
constexpr size_t kPathBytesMax = 4096;
constexpr uint32_t kBatchSizeMax = 1 << 24;
constexpr uint32_t kWorkersMax = 4096;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

absl::Status Missing(const char* field) { return absl::InvalidArgumentError(absl::StrCat("the job has no ", field)); }

}  // namespace

absl::Status ValidateSubmission(const v1::SubmitRequest& request) {
  if (!request.has_job()) return absl::InvalidArgumentError("the request has no job");
  const v1::Job& job = request.job();
  if (job.ByteSizeLong() > kJobBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job has ", job.ByteSizeLong(), " bytes; at most ", kJobBytesMax, " are allowed"));
  }
  const std::string& name = job.name();
  if (name.empty() || name.size() > kNameBytesMax || !std::all_of(name.begin(), name.end(), IsNameCharacter)) {
    return absl::InvalidArgumentError(absl::StrCat("name is ", Quoted(name), " (", name.size(),
                                                   " bytes); expected 1 to ", kNameBytesMax, " of A-Za-z0-9_.-"));
  }
  if (job.data().train().path_size() == 0) return Missing("data.train.path");
  if (!job.has_model()) return Missing("model");
  const uint32_t batch_size = job.train().batch_size();
  if (batch_size < 1 || batch_size > kBatchSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.batch_size is ", batch_size, "; expected 1 to ", kBatchSizeMax));
  }
  if (job.cluster().workers() > kWorkersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("cluster.workers is ", job.cluster().workers(), "; expected at most ", kWorkersMax));
  }
  if (job.cluster().servers() > kBuckets) {
    return absl::InvalidArgumentError(absl::StrCat("cluster.servers is ", job.cluster().servers(),
                                                   "; expected at most ", kBuckets, ", the number of buckets"));
  }
  for (const auto& [field, size] : {std::pair<const char*, size_t>{"restore_from", request.restore_from().size()},
                                    {"request_id", request.request_id().size()}}) {
    if (size > kPathBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(field, " has ", size, " bytes; at most ", kPathBytesMax));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparrow
