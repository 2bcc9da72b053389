#include "worker/same_input.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr uint64_t kEndBytes = 4096;

}  // namespace

absl::StatusOr<std::string> LookAtInput(const std::vector<std::string>& files) {
  uint64_t bytes = 0;
  std::string all;
  std::string ends(2 * kEndBytes, '\0');
  for (const std::string& file : files) {
    absl::StrAppend(&all, std::filesystem::path(file).filename().string(), "\n");
    struct stat info;
    if (stat(file.c_str(), &info) != 0) return ErrnoStatus(errno, "stat", file);
    if (!S_ISREG(info.st_mode)) continue;
    const auto size = static_cast<uint64_t>(info.st_size);
    bytes += size;
    const uint64_t part = std::min(size, kEndBytes);
    std::ifstream in(file, std::ios::binary);
    in.read(ends.data(), static_cast<std::streamsize>(part));
    in.seekg(static_cast<std::streamoff>(size - part));
    in.read(ends.data() + part, static_cast<std::streamsize>(part));
    if (!in) return absl::UnavailableError(absl::StrCat(file, ": cannot be read, or has changed"));
    absl::StrAppend(&all, size, " ", HashBytes(absl::string_view(ends).substr(0, 2 * part)), "\n");
  }
  return absl::StrCat(files.size(), files.size() == 1 ? " file of " : " files of ", bytes, " bytes (hash ",
                      absl::Hex(HashBytes(all)), ")");
}

absl::Status CheckSameInput(const std::vector<std::string>& files, Collective* collective) {
  if (collective->size() == 1) return absl::OkStatus();
  const absl::StatusOr<std::string> seen = LookAtInput(files);
  ASSIGN_OR_RETURN(const std::vector<std::string> all, collective->AllGather(seen.ok() ? *seen : std::string()));
  RETURN_IF_ERROR(seen.status());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    // One that could not look says why itself.
    if (all[rank] == all[0] || all[rank].empty() || all[0].empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", rank, " reads ", all[rank], ", but worker 0 reads ", all[0],
                     ": all workers read the same files under their --data-root; copy them there again"));
  }
  return absl::OkStatus();
}

}  // namespace sparrow
