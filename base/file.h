#ifndef SPARROW_BASE_FILE_H_
#define SPARROW_BASE_FILE_H_

// Files, with errors that name the path and the system's reason.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sparrow {

// The whole file. NotFound, PermissionDenied, or FailedPrecondition (a directory) by what is wrong.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes to PATH.tmp, syncs, renames to PATH and syncs the directory: readers see the old file or the whole new one. Of
// a symbolic link, PATH is where it leads. What is there and no regular file (a device, a pipe) stays, and is written
// to.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents);

// Makes the directory and its parents. OK if it is there.
absl::Status MakeDirectories(const std::string& path);

// Afterwards the names in the directory outlive a loss of power.
absl::Status SyncDirectory(const std::string& path);

// Proves that files can be written in `directory`: makes one under a new random name, writes to it and syncs it.
// Returns its path; the caller removes it.
absl::StatusOr<std::string> WriteProbe(const std::string& directory);

// root/relative, made absolute, refusing (PermissionDenied, naming both) what lies outside root once ".." and symbolic
// links are resolved; a link that leads out is named, and where it leads. An absolute `relative` must lie under root.
// The target need not exist; its existing parents are resolved.
absl::StatusOr<std::string> ResolveUnder(const std::string& root, const std::string& relative);

// Files that match root/pattern, sorted bytewise. Without '*', '?' or '[' the one path, which must exist. NotFound if
// nothing matches; confined to root as ResolveUnder.
absl::StatusOr<std::vector<std::string>> MatchFiles(const std::string& root, const std::string& pattern);

// Of a directory that the flag `flag` names, such as "--data-root". OK if `path` is one and can be read. NotFound,
// FailedPrecondition (a file) or PermissionDenied name flag and path.
absl::Status CheckDirectory(absl::string_view flag, const std::string& path);
// OK if `path` is a directory, or can be made as one.
absl::Status CheckDirectoryOrNew(absl::string_view flag, const std::string& path);

// Of a file that the flag `flag` names. OK if WriteFileAtomically can be expected to write it, or `path` is empty;
// FailedPrecondition names flag and path, or the directory that is not there or cannot be written in.
absl::Status CheckWritable(absl::string_view flag, const std::string& path);

// zlib's CRC-32 of a whole file, and its size.
struct FileDigest {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};
absl::StatusOr<FileDigest> DigestFile(const std::string& path);

// The Status for errno `error` at `path`: "PATH: cannot <verb>: <reason>".
absl::Status ErrnoStatus(int error, absl::string_view verb, absl::string_view path);

}  // namespace sparrow

#endif  // SPARROW_BASE_FILE_H_
