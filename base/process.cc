#include "base/process.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <limits>
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

uint64_t AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kilobytes = 0;
  for (std::string unit; file >> name >> kilobytes; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kilobytes << 10;
  }
  return std::numeric_limits<uint64_t>::max();
}

}  // namespace sparrow
