#ifndef SPARROW_TESTS_SUPPORT_TEMP_FILES_H_
#define SPARROW_TESTS_SUPPORT_TEMP_FILES_H_

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/file.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {

// Files in a directory of their own, for what reads files.
class TempFiles {
 public:
  const std::string& root() const { return root_; }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }

  void Write(const std::string& name, absl::string_view bytes) const {
    std::ofstream file(Path(name), std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    CHECK(file.good()) << Path(name);
  }
  std::string Read(const std::string& name) const {
    const absl::StatusOr<std::string> bytes = ReadFile(Path(name));
    CHECK(bytes.ok()) << bytes.status();
    return *bytes;
  }

 private:
  const TemporaryDirectory directory_;
  const std::string root_ = std::filesystem::canonical(directory_.path()).string();
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_TEMP_FILES_H_
