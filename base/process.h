#ifndef SPARROW_BASE_PROCESS_H_
#define SPARROW_BASE_PROCESS_H_

#include <cstdint>

namespace sparrow {

// The first call of every program's main: settings of libraries that hold for the whole process. REQUIRES: no other
// thread yet; argv is main's.
//
// OpenMP: a thread that waits for the others of its team spins for a few microseconds and then sleeps. libgomp's own
// default is about a millisecond, in which a thread of ours that waits keeps one that works off its core as soon as
// anything else runs on the machine. libgomp reads its settings before main, so this starts the program anew with
// GOMP_SPINCOUNT set, unless the environment says GOMP_SPINCOUNT or OMP_WAIT_POLICY itself.
//
// absl: Debian's build looks for deadlocks at every lock; that is off here.
void PrepareProcess(char** argv);

// Memory that new allocations of this machine can have without swapping (MemAvailable of /proc/meminfo). Where the
// system does not say: 2^64 - 1.
uint64_t AvailableMemoryBytes();

}  // namespace sparrow

#endif  // SPARROW_BASE_PROCESS_H_
