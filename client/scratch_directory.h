#ifndef SPARROW_CLIENT_SCRATCH_DIRECTORY_H_
#define SPARROW_CLIENT_SCRATCH_DIRECTORY_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace sparrow {

// A new directory under the system's temporary one, removed with all that is in it at the end.
class ScratchDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<ScratchDirectory>> Create();
  ~ScratchDirectory();

  const std::string& path() const { return path_; }

 private:
  explicit ScratchDirectory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

}  // namespace sparrow

#endif  // SPARROW_CLIENT_SCRATCH_DIRECTORY_H_
