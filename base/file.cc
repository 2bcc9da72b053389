#include "base/file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {

absl::Status ErrnoStatus(int error, absl::string_view verb, absl::string_view path) {
  const std::string message = absl::StrCat(path, ": cannot ", verb, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EISDIR:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

namespace {

// Calls `visit` with each block of the file.
template <typename Visit>
absl::Status ReadBlocks(const std::string& path, Visit visit) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  constexpr size_t kBlockBytes = 1 << 20;
  const auto block = std::make_unique<char[]>(kBlockBytes);
  for (;;) {
    const ssize_t got = read(fd, block.get(), kBlockBytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read", path);
    if (got == 0) return absl::OkStatus();
    visit(absl::string_view(block.get(), static_cast<size_t>(got)));
  }
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::string contents;
  RETURN_IF_ERROR(ReadBlocks(path, [&](absl::string_view block) { contents.append(block.data(), block.size()); }));
  return contents;
}

absl::StatusOr<FileDigest> DigestFile(const std::string& path) {
  FileDigest digest;
  uLong crc = crc32(0, nullptr, 0);
  RETURN_IF_ERROR(ReadBlocks(path, [&](absl::string_view block) {
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(block.data()), block.size());
    digest.bytes += block.size();
  }));
  digest.crc32 = static_cast<uint32_t>(crc);
  return digest;
}

namespace {

absl::Status WriteAll(int fd, const std::string& path, absl::string_view contents) {
  while (!contents.empty()) {
    const ssize_t put = write(fd, contents.data(), contents.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, "write", path);
    contents.remove_prefix(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

// Where a symbolic link leads, be it to a file that is not there yet; any other path as it is.
std::string BehindLinks(const std::string& path) {
  constexpr int kLinksMax = 40;  // As the system follows.
  std::filesystem::path at = path;
  std::error_code error;
  for (int links = 0; links < kLinksMax && std::filesystem::is_symlink(at, error); ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(at, error);
    if (error) break;
    at = at.parent_path() / next;  // `next` alone if it is absolute.
  }
  return at.string();
}

std::string DirectoryOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// A device, a pipe, a socket.
bool IsSpecial(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents) {
  if (IsSpecial(path)) {
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, "open", path);
    absl::Cleanup close_fd = [fd] { close(fd); };
    return WriteAll(fd, path, contents);
  }
  const std::string target = BehindLinks(path);
  const std::string temporary = absl::StrCat(target, ".tmp");
  {
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return ErrnoStatus(errno, "create", temporary);
    absl::Cleanup close_fd = [fd] { close(fd); };
    RETURN_IF_ERROR(WriteAll(fd, temporary, contents));
    if (fsync(fd) != 0) return ErrnoStatus(errno, "sync", temporary);
  }
  if (rename(temporary.c_str(), target.c_str()) != 0) return ErrnoStatus(errno, "rename to", target);
  return SyncDirectory(DirectoryOf(target));
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (fsync(fd) != 0) return ErrnoStatus(errno, "sync", path);
  return absl::OkStatus();
}

absl::Status CheckWritable(absl::string_view flag, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::FailedPreconditionError(absl::StrCat(flag, " ", path, ": is a directory; name a file"));
  }
  if (IsSpecial(path)) {
    if (access(path.c_str(), W_OK) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(flag, " ", ErrnoStatus(errno, "write", path).message()));
  }
  const std::string directory = DirectoryOf(BehindLinks(path));
  if (access(directory.c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(ErrnoStatus(errno, "write in", directory).message(), "; ", flag,
                                                    " needs a directory that is there"));
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), "make directory", path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> WriteProbe(const std::string& directory) {
  constexpr absl::string_view kContents = "Written to see whether files can be written here; may be removed.\n";
  std::string path = absl::StrCat(directory, "/.probe-XXXXXX");
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "write a file there", directory);
  errno = ENOSPC;  // What a short write means.
  // Some file systems tell only when they sync that there is no room.
  const bool written =
      write(fd, kContents.data(), kContents.size()) == static_cast<ssize_t>(kContents.size()) && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (written) return path;
  unlink(path.c_str());
  return ErrnoStatus(error, "write a file there", directory);
}

absl::Status CheckDirectory(absl::string_view flag, const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return Annotate(ErrnoStatus(errno, "use the directory", path), flag);
    return absl::NotFoundError(absl::StrCat(flag, " ", path, ": no such directory; name the one that holds the data"));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(flag, " ", path, ": is a file; name the directory it lies in"));
  }
  if (access(path.c_str(), R_OK | X_OK) != 0) return Annotate(ErrnoStatus(errno, "read the directory", path), flag);
  return absl::OkStatus();
}

absl::Status CheckDirectoryOrNew(absl::string_view flag, const std::string& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::absolute(path, error).lexically_normal();
  for (std::filesystem::path at = target;; at = at.parent_path()) {
    struct stat info;
    if (stat(at.c_str(), &info) == 0) {
      if (!S_ISDIR(info.st_mode)) {
        return absl::FailedPreconditionError(
            absl::StrCat(flag, " ", path, at == target ? ": is a file" : absl::StrCat(": ", at.string(), " is a file"),
                         "; name a directory, or one that can be made"));
      }
      if (at != target && access(at.c_str(), W_OK | X_OK) != 0) {
        const absl::Status refused = ErrnoStatus(errno, "make a directory there", at.string());
        return absl::Status(refused.code(), absl::StrCat(flag, " ", path, ": ", refused.message(),
                                                         "; name a directory that you may write, or make it first"));
      }
      return absl::OkStatus();
    }
    // Of a path through a file, the file itself says so above.
    if ((errno != ENOENT && errno != ENOTDIR) || at == at.parent_path()) {
      return Annotate(ErrnoStatus(errno, "use the directory", path), flag);
    }
  }
}

namespace {

bool IsInside(const std::filesystem::path& base, const std::filesystem::path& target) {
  const auto [base_end, target_at] = std::mismatch(base.begin(), base.end(), target.begin(), target.end());
  return base_end == base.end() || (base_end->empty() && std::next(base_end) == base.end());
}

// Of a path that leads out of `base`: through which link, or "" if through none.
std::string LinkOut(const std::filesystem::path& base, const std::filesystem::path& path) {
  std::filesystem::path at;
  for (const std::filesystem::path& part : path.lexically_normal()) {
    at /= part;
    std::error_code error;
    if (!std::filesystem::is_symlink(at, error)) continue;
    const std::filesystem::path target = std::filesystem::weakly_canonical(at, error);
    if (!error && IsInside(base, at) && !IsInside(base, target)) {
      return absl::StrCat(at.string(), " is a link to ", target.string());
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> ResolveUnder(const std::string& root, const std::string& relative) {
  std::error_code error;
  const std::filesystem::path base = std::filesystem::weakly_canonical(std::filesystem::absolute(root), error);
  if (error) return ErrnoStatus(error.value(), "resolve", root);
  const std::filesystem::path target = std::filesystem::weakly_canonical(base / relative, error);
  if (error) return ErrnoStatus(error.value(), "resolve", (base / relative).string());
  if (!IsInside(base, target)) {
    const std::string link = LinkOut(base, base / relative);
    return absl::PermissionDeniedError(
        absl::StrCat("path \"", relative, "\" lies outside the root ", base.string(), link.empty() ? "" : ": ", link));
  }
  return target.string();
}

absl::StatusOr<std::vector<std::string>> MatchFiles(const std::string& root, const std::string& pattern) {
  if (pattern.find_first_of("*?[") == std::string::npos) {
    ASSIGN_OR_RETURN(const std::string path, ResolveUnder(root, pattern));
    if (access(path.c_str(), F_OK) != 0) return ErrnoStatus(errno, "open", path);
    return std::vector<std::string>{path};
  }
  const std::string full = (std::filesystem::path(root) / pattern).string();
  glob_t found;
  const int result = glob(full.c_str(), GLOB_NOSORT, nullptr, &found);
  absl::Cleanup free_found = [&found] { globfree(&found); };
  if (result != 0) return absl::NotFoundError(absl::StrCat(full, ": no file matches"));
  std::vector<std::string> paths;
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    ASSIGN_OR_RETURN(std::string path, ResolveUnder(root, std::filesystem::absolute(found.gl_pathv[i]).string()));
    paths.push_back(std::move(path));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace sparrow
