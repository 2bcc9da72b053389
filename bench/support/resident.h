#ifndef SPARROW_BENCH_SUPPORT_RESIDENT_H_
#define SPARROW_BENCH_SUPPORT_RESIDENT_H_

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace sparrow {

// VmRSS of this process, in bytes.
inline uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace sparrow

#endif  // SPARROW_BENCH_SUPPORT_RESIDENT_H_
