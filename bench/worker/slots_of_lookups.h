#ifndef SPARROW_BENCH_WORKER_SLOTS_OF_LOOKUPS_H_
#define SPARROW_BENCH_WORKER_SLOTS_OF_LOOKUPS_H_

#include <cstdint>

#include "base/cuda/stream.h"

namespace sparrow {

// output[i] = slots[index[i]]: where the row of each look-up lies, of a batch whose unique rows were found. All arrays
// are GPU memory.
void SlotsOfLookups(const uint32_t* index /*[n]*/, uint32_t n, const uint32_t* slots, uint32_t* output /*[n]*/,
                    const Stream& queue);

}  // namespace sparrow

#endif  // SPARROW_BENCH_WORKER_SLOTS_OF_LOOKUPS_H_
