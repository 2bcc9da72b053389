#ifndef SPARROW_CLIENT_RESUME_PATH_H_
#define SPARROW_CLIENT_RESUME_PATH_H_

#include <string>

namespace sparrow {

// What --resume means to members, who look a relative path up under their --checkpoint-root: `path` itself if it is
// there under `root` (which may be empty: not known) or nowhere, else, where it is there from the current directory, as
// a shell completes it, its absolute form.
std::string ResumePath(const std::string& path, const std::string& root);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_RESUME_PATH_H_
