#ifndef SPARROW_WORKER_SOURCE_FILES_H_
#define SPARROW_WORKER_SOURCE_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// Files of all of the source's paths, each path with `suffix` behind it, in order; those outside the root are refused.
// An empty root is the current directory. NotFound says where a path was looked up; InvalidArgument: no path, an empty
// one, a file that is named twice.
absl::StatusOr<std::vector<std::string>> SourceFiles(const std::string& data_root, const v1::DataSource& source,
                                                     absl::string_view suffix);

}  // namespace sparrow

#endif  // SPARROW_WORKER_SOURCE_FILES_H_
