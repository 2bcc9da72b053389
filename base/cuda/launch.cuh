#ifndef SPARROW_BASE_CUDA_LAUNCH_CUH_
#define SPARROW_BASE_CUDA_LAUNCH_CUH_

// Every kernel is started through Launch, which looks at the result. A failed launch is a broken invariant of ours: a
// CUDA context does not recover.

#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"
#include "base/cuda/stream.h"

namespace sparrow {

// CHECKs that a CUDA call succeeded, and names it.
#define CHECK_CUDA(call)                                                                 \
  do {                                                                                   \
    const cudaError_t cuda_error = (call);                                               \
    CHECK(cuda_error == cudaSuccess) << #call << ": " << cudaGetErrorString(cuda_error); \
  } while (false)

// Starts kernel<<<grid, block>>>(arguments...) on the stream. A grid of 0 blocks is legal and starts nothing.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), int64_t grid, int block, const Stream& stream, Arguments... arguments) {
  if (grid == 0) return;
  CHECK(grid > 0 && grid <= INT32_MAX) << "grid of " << grid << " blocks";
  kernel<<<static_cast<unsigned>(grid), block, 0, stream.get()>>>(static_cast<Parameters>(arguments)...);
  CHECK_CUDA(cudaGetLastError());
}

// The same with `shared_bytes` of dynamic shared memory, more than the 48 KB that every kernel may have.
template <typename... Parameters, typename... Arguments>
void LaunchShared(void (*kernel)(Parameters...), int64_t grid, int block, size_t shared_bytes, const Stream& stream,
                  const Arguments&... arguments) {
  if (grid == 0) return;
  CHECK(grid > 0 && grid <= INT32_MAX) << "grid of " << grid << " blocks";
  CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  kernel<<<static_cast<unsigned>(grid), block, shared_bytes, stream.get()>>>(arguments...);
  CHECK_CUDA(cudaGetLastError());
}

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_LAUNCH_CUH_
