#include "client/resume_path.h"

#include <filesystem>

namespace sparrow {

std::string ResumePath(const std::string& path, const std::string& root) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (path.empty() || fs::path(path).is_absolute()) return path;
  if (!root.empty() && fs::exists(fs::path(root) / path, error)) return path;
  if (!fs::exists(path, error)) return path;
  const fs::path absolute = fs::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

}  // namespace sparrow
