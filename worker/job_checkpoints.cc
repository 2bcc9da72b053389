#include "worker/job_checkpoints.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;

constexpr char kStep[] = "step-";

struct StepDirectory {
  uint64_t step = 0;
  std::string path;
  bool complete = false;  // It has a manifest.
};

// Those in the directory of a job's checkpoints, newest first.
std::vector<StepDirectory> StepDirectories(const std::string& directory) {
  std::vector<StepDirectory> found;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    absl::string_view number = name;
    StepDirectory step;
    if (!absl::ConsumePrefix(&number, kStep) || !absl::SimpleAtoi(number, &step.step)) continue;
    step.path = entry->path().string();
    std::error_code ignored;
    step.complete = fs::exists(entry->path() / kManifestName, ignored);
    found.push_back(std::move(step));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

// Without its manifest first, it is none any more, wherever the removal ends.
void RemoveDirectory(const std::string& path) {
  std::error_code error;
  fs::remove(fs::path(path) / kManifestName, error);
  if (!error) fs::remove_all(path, error);
  if (error) LOG(WARNING) << path << ": cannot remove: " << error.message();
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobCheckpoints>> JobCheckpoints::Prepare(const std::string& root,
                                                                        const std::string& job_name,
                                                                        const std::string& job_id) {
  std::unique_ptr<JobCheckpoints> checkpoints(new JobCheckpoints(root));
  const absl::Status made = checkpoints->Make(job_name, job_id);
  if (made.ok()) return checkpoints;
  return absl::Status(made.code(), absl::StrCat("--checkpoint-root ", root, ": ", made.message(),
                                                "; give all members one --checkpoint-root that they share and may "
                                                "write"));
}

absl::Status JobCheckpoints::Make(const std::string& job_name, const std::string& job_id) {
  const std::string name = absl::StrCat(job_name, "-", job_id);
  ASSIGN_OR_RETURN(const std::string first, ResolveUnder(root_, name));
  std::vector<fs::path> absent;
  std::error_code error;
  fs::path at = fs::path(first).parent_path();
  for (; !fs::exists(at, error) && at.has_relative_path(); at = at.parent_path()) absent.push_back(at);
  for (; !absent.empty(); absent.pop_back()) {
    const std::string path = absent.back().string();
    if (fs::create_directory(path, error)) made_.push_back(path);
    if (error) return ErrnoStatus(error.value(), "make directory", path);
  }
  for (int attempt = 1; directory_.empty(); ++attempt) {
    const std::string path = attempt == 1 ? first : absl::StrCat(first, ".", attempt);
    if (fs::create_directory(path, error)) {
      made_.push_back(path);
      directory_ = path;
    }
    if (error) return ErrnoStatus(error.value(), "make directory", path);
  }
  ASSIGN_OR_RETURN(probe_, WriteProbe(directory_));
  ASSIGN_OR_RETURN(probe_relative_, RelativeToRoot(root_, probe_));
  return absl::OkStatus();
}

JobCheckpoints::~JobCheckpoints() {
  RemoveProbe();
  for (; !made_.empty(); made_.pop_back()) {
    // rmdir alone: what holds anything stays.
    if (rmdir(made_.back().c_str()) != 0) return;
  }
}

void JobCheckpoints::RemoveProbe() {
  if (probe_.empty()) return;
  std::error_code error;
  fs::remove(std::exchange(probe_, ""), error);
  if (error) LOG(WARNING) << probe_relative_ << ": cannot remove: " << error.message();
}

absl::StatusOr<JobCheckpoints::Saved> JobCheckpoints::Save(const v1::Job& job, const DataCursor& cursor, uint32_t keep,
                                                           PutFiles put) {
  const std::string directory = absl::StrCat(directory_, "/", kStep, cursor.step);
  std::error_code error;
  if (!fs::exists(fs::path(directory) / kManifestName, error)) {
    RemoveUnfinished();
    if (!fs::create_directory(directory, error)) return ErrnoStatus(error.value(), "make directory", directory);
    absl::StatusOr<Saved> saved = Write(job, cursor, directory, put);
    if (!saved.ok()) {
      RemoveDirectory(directory);
      return saved;
    }
    RemoveOld(keep);
    return saved;
  }
  ASSIGN_OR_RETURN(const v1::Manifest manifest, ReadManifest(directory));
  return Saved{.directory = directory, .bytes = BytesOf(manifest)};
}

absl::StatusOr<JobCheckpoints::Saved> JobCheckpoints::Write(const v1::Job& job, const DataCursor& cursor,
                                                            const std::string& directory, PutFiles put) {
  ASSIGN_OR_RETURN(const std::string relative, RelativeToRoot(root_, directory));
  v1::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  *manifest.mutable_job() = job;
  manifest.set_step(cursor.step);
  manifest.set_epoch(cursor.epoch);
  manifest.set_rows_in_epoch(cursor.rows_in_epoch);
  RETURN_IF_ERROR(put(relative, directory, &manifest));
  manifest.set_created(absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()));
  RETURN_IF_ERROR(WriteManifest(directory, manifest));
  RETURN_IF_ERROR(SyncDirectory(directory_));  // Before older ones go.
  return Saved{.directory = directory, .bytes = BytesOf(manifest)};
}

void JobCheckpoints::RemoveUnfinished() const {
  for (const StepDirectory& step : StepDirectories(directory_)) {
    if (!step.complete) RemoveDirectory(step.path);
  }
}

void JobCheckpoints::RemoveOld(uint32_t keep) const {
  for (const StepDirectory& step : StepDirectories(directory_)) {
    if (!step.complete) continue;
    if (keep > 0) {
      --keep;
    } else {
      RemoveDirectory(step.path);
    }
  }
}

bool IsJobDirectory(const std::string& root, const std::string& path) {
  const absl::StatusOr<std::string> directory = ResolveUnder(root, path);
  std::error_code ignored;
  return directory.ok() && !fs::exists(fs::path(*directory) / kManifestName, ignored) &&
         !StepDirectories(*directory).empty();
}

absl::StatusOr<Checkpoint> NewestCheckpoint(const std::string& root, const std::string& path,
                                            const std::function<bool()>& stopped) {
  ASSIGN_OR_RETURN(const std::string directory, ResolveUnder(root, path));
  absl::Status newest_error;
  for (const StepDirectory& step : StepDirectories(directory)) {
    if (!step.complete) continue;
    absl::StatusOr<Checkpoint> checkpoint = OpenCheckpoint(root, step.path);
    if (checkpoint.ok()) {
      const absl::Status whole = VerifyCheckpoint(*checkpoint, CheckpointFiles::kAll, stopped);
      if (absl::IsCancelled(whole)) return whole;
      if (whole.ok()) return checkpoint;
      checkpoint = whole;
    }
    LOG(WARNING) << step.path << " is passed over: " << checkpoint.status().message();
    newest_error.Update(checkpoint.status());
  }
  if (newest_error.ok()) {
    return absl::NotFoundError(
        absl::StrCat(directory, " holds no complete checkpoint: none of its directories has a ", kManifestName));
  }
  return absl::Status(
      newest_error.code(),
      absl::StrCat(directory, " holds no checkpoint that is whole; of the newest: ", newest_error.message()));
}

}  // namespace sparrow
