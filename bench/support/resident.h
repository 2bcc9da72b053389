#ifndef SPARROW_BENCH_SUPPORT_RESIDENT_H_
#define SPARROW_BENCH_SUPPORT_RESIDENT_H_

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace sparrow {

// VmRSS of a process, by default this one, in bytes.
inline uint64_t ResidentBytes(const std::string& process = "self") {
  std::ifstream statm("/proc/" + process + "/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// What `resident` bytes are allowed to be for a budget: 10 % more. Below a budget of 1 GiB, what does not grow with it
// (the program, the threads and merges of RocksDB, a batch's scratch space) counts for too much, and has some room of
// its own.
inline uint64_t ResidentBytesMax(uint64_t budget) {
  const uint64_t fixed = budget < (uint64_t{1} << 30) ? uint64_t{96} << 20 : 0;
  return budget + budget / 10 + fixed;
}

}  // namespace sparrow

#endif  // SPARROW_BENCH_SUPPORT_RESIDENT_H_
