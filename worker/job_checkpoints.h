#ifndef SPARROW_WORKER_JOB_CHECKPOINTS_H_
#define SPARROW_WORKER_JOB_CHECKPOINTS_H_

// The checkpoints that one run of a job writes, and the one that the next run goes on from.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint.h"

namespace sparrow {

// Writes the files of a checkpoint into its directory, which it gets relative to the root and absolute, and names them
// in the manifest, which has job and cursor; the manifest is written after it.
using PutFiles =
    absl::FunctionRef<absl::Status(const std::string& relative, const std::string& directory, v1::Manifest* manifest)>;

// A directory ROOT/<job name>-<job id>, which this run has made and no other writes to, with the checkpoints step-<N>,
// N being the number of steps done. It is made before the first step, so that a root that cannot be used is found
// before anything is trained for it. Not thread-safe.
class JobCheckpoints {
 public:
  // Where that name is taken, a dot and a number are put after it. Writes a probe file there, which the servers are to
  // see too. Errors name --checkpoint-root, the path and the remedy, and leave nothing behind.
  static absl::StatusOr<std::unique_ptr<JobCheckpoints>> Prepare(const std::string& root, const std::string& job_name,
                                                                 const std::string& job_id);
  // Removes the probe and, of the directories that Prepare made, those that are still empty.
  ~JobCheckpoints();

  const std::string& probe() const { return probe_relative_; }  // Relative to the root.
  void RemoveProbe();
  const std::string& directory() const { return directory_; }  // Absolute.

  struct Saved {
    std::string directory;  // Absolute.
    uint64_t bytes = 0;     // Of the files that the manifest names.
  };
  // Writes the checkpoint of cursor.step; once it is complete, all but the `keep` newest complete ones go, and what
  // unfinished ones have left goes before. Where it is complete already, it stays as it is. On error it has left
  // nothing, if the file system lets it be removed, and those before are untouched. REQUIRES: keep > 0.
  absl::StatusOr<Saved> Save(const v1::Job& job, const DataCursor& cursor, uint32_t keep, PutFiles put);

 private:
  explicit JobCheckpoints(std::string root) : root_(std::move(root)) {}
  absl::Status Make(const std::string& job_name, const std::string& job_id);
  absl::StatusOr<Saved> Write(const v1::Job& job, const DataCursor& cursor, const std::string& directory, PutFiles put);
  void RemoveUnfinished() const;
  void RemoveOld(uint32_t keep) const;

  const std::string root_;
  std::vector<std::string> made_;  // Outermost first.
  std::string directory_;
  std::string probe_;  // Absolute; empty: there is none.
  std::string probe_relative_;
};

// Whether `path`, as in OpenCheckpoint, is the directory of a job's checkpoints, rather than one of them.
bool IsJobDirectory(const std::string& root, const std::string& path);

// Of the checkpoints in such a directory the newest one whose files are those of its manifest. Newer ones that are
// damaged are named in the log, with what is wrong. DataLoss: all are; NotFound: there is none. Cancelled if `stopped`,
// which may be null, says so.
absl::StatusOr<Checkpoint> NewestCheckpoint(const std::string& root, const std::string& path,
                                            const std::function<bool()>& stopped);

}  // namespace sparrow

#endif  // SPARROW_WORKER_JOB_CHECKPOINTS_H_
