#include "base/process.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/synchronization/mutex.h"

namespace sparrow {

void PrepareProcess(char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "1000", /*replace=*/1);
  // By its path, so that the process keeps the program's name.
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return;
  path.resize(static_cast<size_t>(length));
  execv(path.c_str(), argv);  // Returns only if it fails; then libgomp's default stands.
}

}  // namespace sparrow
