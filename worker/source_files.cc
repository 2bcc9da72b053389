#include "worker/source_files.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace sparrow {

absl::StatusOr<std::vector<std::string>> SourceFiles(const std::string& data_root, const v1::DataSource& source,
                                                     absl::string_view suffix) {
  if (source.path().empty()) {
    return absl::InvalidArgumentError("data: a source has no path; set path to its files");
  }
  const std::string root = data_root.empty() ? "." : data_root;
  std::vector<std::string> files;
  absl::flat_hash_set<std::string> seen;
  for (const std::string& pattern : source.path()) {
    if (pattern.empty())
      return absl::InvalidArgumentError("data: a path is empty; set it to a file under the data root");
    absl::StatusOr<std::vector<std::string>> found = MatchFiles(root, absl::StrCat(pattern, suffix));
    if (!found.ok()) {
      return absl::Status(found.status().code(),
                          absl::StrCat(found.status().message(), "; path \"", pattern,
                                       "\" is looked up under the data root \"", root, "\" (--data-root)"));
    }
    for (std::string& file : *found) {
      if (!seen.insert(file).second) {
        return absl::InvalidArgumentError(absl::StrCat(file, ": is named twice, the second time by path \"", pattern,
                                                       "\"; its rows would be read twice an epoch, so name it once"));
      }
      files.push_back(std::move(file));
    }
  }
  return files;
}

}  // namespace sparrow
