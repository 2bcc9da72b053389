#ifndef SPARROW_EMBEDDING_ROW_NAME_CUH_
#define SPARROW_EMBEDDING_ROW_NAME_CUH_

// Names of rows as kernels read them: 16 bytes at once.

#include <cuda_runtime.h>

#include <cstdint>

#include "embedding/row_name.h"

namespace sparrow {

__device__ inline uint32_t CountOf(uint32_t max, const uint32_t* count) {
  return count == nullptr ? max : min(max, *count);
}
__device__ inline uint32_t CountOf(const DeviceNames& names) { return CountOf(names.max, names.count); }

__device__ inline uint4 Words(const RowName* name) { return *reinterpret_cast<const uint4*>(name); }
__device__ inline RowName NameOf(const uint4& words) { return {words.x | uint64_t{words.y} << 32, words.z, words.w}; }
__device__ inline RowName Load(const RowName* name) { return NameOf(Words(name)); }

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_NAME_CUH_
