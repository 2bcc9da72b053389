#include "server/data_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

absl::Status WithRemedy(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("data directory ", status.message(),
                                                  "; give --data a directory that this user can write to"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataDirectory>> DataDirectory::Claim(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("--data is empty; give it a directory for the cold tier");
  RETURN_IF_ERROR(WithRemedy(MakeDirectories(path)));
  const std::string lock = path + "/LOCK";
  const int fd = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return WithRemedy(ErrnoStatus(errno, "create", lock));
  std::unique_ptr<DataDirectory> directory(new DataDirectory(path, fd));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return WithRemedy(ErrnoStatus(errno, "lock", lock));
    return absl::FailedPreconditionError(
        absl::StrCat("data directory ", path, " is in use by another server; give each server its own --data"));
  }
  std::error_code error;
  std::filesystem::remove_all(path + "/jobs", error);
  if (error) return WithRemedy(ErrnoStatus(error.value(), "remove", path + "/jobs"));
  RETURN_IF_ERROR(WithRemedy(MakeDirectories(path + "/jobs")));
  return directory;
}

DataDirectory::DataDirectory(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

DataDirectory::~DataDirectory() { close(lock_fd_); }

}  // namespace sparrow
