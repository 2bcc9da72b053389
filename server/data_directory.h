#ifndef SPARROW_SERVER_DATA_DIRECTORY_H_
#define SPARROW_SERVER_DATA_DIRECTORY_H_

// The directory of a server's cold tier: PATH/LOCK, held while the server runs, and PATH/jobs/, one directory a job and
// epoch. Nothing else in PATH is touched.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sparrow {

// Immutable after Claim.
class DataDirectory {
 public:
  // Makes the directory, locks it and removes what an earlier server left in jobs/. The error names the path and says
  // what to do: FailedPrecondition if another server holds it.
  static absl::StatusOr<std::unique_ptr<DataDirectory>> Claim(const std::string& path);
  ~DataDirectory();  // Gives up the lock.
  DataDirectory(const DataDirectory&) = delete;
  DataDirectory& operator=(const DataDirectory&) = delete;

  // PATH/jobs/NAME. REQUIRES: `name` is one path component.
  std::string ForJob(const std::string& name) const { return path_ + "/jobs/" + name; }

 private:
  DataDirectory(std::string path, int lock_fd);

  const std::string path_;
  const int lock_fd_;
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_DATA_DIRECTORY_H_
