#include "client/scratch_directory.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<ScratchDirectory>> ScratchDirectory::Create() {
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  std::string path = (temporary / "sparrow-run-XXXXXX").string();
  if (error || mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a directory for cold rows under ", temporary.string(),
                                               "; set TMPDIR to a directory that can be written"));
  }
  return std::unique_ptr<ScratchDirectory>(new ScratchDirectory(path));
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) LOG(WARNING) << path_ << " could not be removed: " << error.message();
}

}  // namespace sparrow
