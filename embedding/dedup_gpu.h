#ifndef SPARROW_EMBEDDING_DEDUP_GPU_H_
#define SPARROW_EMBEDDING_DEDUP_GPU_H_

// The CUDA half of embedding/dedup.h: unique names of a batch, in order of first appearance. Needs CUDA and base/cuda
// only. Deterministic: every run and the CPU half give the same numbers.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "embedding/row_name.h"
#include "embedding/sparse_update_gpu.h"

namespace sparrow {

// What is written, all in GPU memory.
struct DeviceUnique {
  RowName* names = nullptr;   // [names.max], of which the first *count are set.
  uint32_t* count = nullptr;  // [1]
  uint32_t* index = nullptr;  // [names.max]: of each name given, its position among the unique ones.
};

// Places of the hash table for so many names: a power of two, so that at most half of them are taken. In 64 bits,
// because of 2^30 names on they are 2^32.
constexpr uint64_t UniquePlaces(uint32_t names) { return std::bit_ceil(2 * uint64_t{names} + 1); }

// For up to `names` names, below 2^31: 16 to 32 bytes for hashing and 8 for numbers for each.
size_t UniqueWorkspaceBytes(uint32_t names);

// Queued on `queue`; allocates nothing and waits for nothing. REQUIRES: workspace.bytes >=
// UniqueWorkspaceBytes(names.max). It holds nothing between calls.
void UniqueNamesGpu(const DeviceNames& names, const DeviceUnique& unique, const DeviceWorkspace& workspace,
                    const Stream& queue);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_DEDUP_GPU_H_
