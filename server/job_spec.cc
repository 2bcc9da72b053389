#include "server/job_spec.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

// Job names become directory names.
bool IsJobName(const std::string& name) {
  if (name.empty() || name.size() > 128 || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-'; });
}

absl::StatusOr<ShardAssignment> ParseShardMap(const v1::OpenJobRequest& request) {
  const auto& owner = request.shard_map().owner();
  uint32_t last = request.server();
  for (const uint32_t server : owner) last = std::max(last, server);
  if (last >= kBuckets) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shard map names server ", last, "; servers are numbered 0 to ", kBuckets - 1));
  }
  return ShardAssignment::FromOwners(std::span<const uint32_t>(owner.data(), static_cast<size_t>(owner.size())),
                                     last + 1);
}

}  // namespace

absl::StatusOr<JobSpec> ParseOpenJob(const v1::OpenJobRequest& request) {
  JobSpec spec;
  spec.job_id = request.context().job_id();
  spec.epoch = request.context().epoch();
  spec.fingerprint = request.context().fingerprint();
  spec.workers = request.workers();
  spec.server = request.server();
  spec.restore_from = request.restore_from();
  spec.first_step = request.first_step();
  spec.prefetch = request.prefetch();
  if (!IsJobName(spec.job_id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("job id of ", spec.job_id.size(),
                     " bytes is not 1 to 128 letters, digits, '_', '-' and '.', beginning with none of '.'"));
  }
  if (spec.workers == 0 || spec.workers > kWorkersMax) {
    return absl::InvalidArgumentError(absl::StrCat("workers is ", spec.workers, ", expected 1 to ", kWorkersMax));
  }
  if (request.context().worker() >= spec.workers) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", request.context().worker(), " is not one of ",
                                                   spec.workers, " (0 to ", spec.workers - 1, ")"));
  }
  if (request.tables_size() > kTablesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job has ", request.tables_size(), " tables, at most ", kTablesMax, " are possible"));
  }
  absl::flat_hash_set<std::string> names;
  for (const v1::TableConfig& config : request.tables()) {
    ASSIGN_OR_RETURN(TableSpec table, ParseTableConfig(config, request.seed()));
    if (!names.insert(table.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("two tables of the job are named \"", table.name, "\""));
    }
    spec.tables.push_back(std::move(table));
  }
  ASSIGN_OR_RETURN(spec.shards, ParseShardMap(request));
  const std::vector<v1::TableConfig> configs(request.tables().begin(), request.tables().end());
  const uint64_t fingerprint = ConfigFingerprint(configs, request.seed(), spec.shards);
  if (fingerprint != spec.fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", spec.job_id, ": the worker's configuration has fingerprint ", spec.fingerprint,
                     ", this server computes ", fingerprint, "; are both of the same version?"));
  }
  return spec;
}

absl::Status CheckSameConfiguration(const JobSpec& spec, const JobSpec& other) {
  const auto differs = [&spec](absl::string_view field, const auto& open, const auto& given) {
    return absl::FailedPreconditionError(absl::StrCat("job ", spec.job_id, " epoch ", spec.epoch, " is open here with ",
                                                      field, " ", open, ", not ", given,
                                                      "; a changed job needs a new epoch"));
  };
  if (spec.fingerprint != other.fingerprint) return differs("fingerprint", spec.fingerprint, other.fingerprint);
  if (spec.workers != other.workers) return differs("workers", spec.workers, other.workers);
  if (spec.server != other.server) return differs("server", spec.server, other.server);
  if (spec.first_step != other.first_step) return differs("first_step", spec.first_step, other.first_step);
  if (spec.prefetch != other.prefetch) return differs("prefetch", spec.prefetch, other.prefetch);
  if (spec.restore_from != other.restore_from) return differs("restore_from", spec.restore_from, other.restore_from);
  return absl::OkStatus();
}

}  // namespace sparrow
