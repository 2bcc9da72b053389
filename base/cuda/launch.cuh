#ifndef SPARROW_BASE_CUDA_LAUNCH_CUH_
#define SPARROW_BASE_CUDA_LAUNCH_CUH_

// Every kernel is started through Launch, which looks at the result. A failed launch is a broken invariant of ours: a
// CUDA context does not recover.

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/cuda/stream.h"

namespace sparrow {

// What a person needs to know of a CUDA error: its name and text, and how much GPU memory is free, if that can still be
// asked.
std::string CudaTrouble(cudaError_t error);

// CHECKs that a CUDA call succeeded, and names it.
#define CHECK_CUDA(call)                                                          \
  do {                                                                            \
    const cudaError_t cuda_error = (call);                                        \
    CHECK(cuda_error == cudaSuccess) << #call << ": " << CudaTrouble(cuda_error); \
  } while (false)

namespace internal {
// CHECKs that the launch just made succeeded, and names the kernel. An error of work queued before may come out here.
void CheckLaunched(const void* kernel, int64_t grid, int block);
}  // namespace internal

// Starts kernel<<<grid, block>>>(arguments...) on the stream. A grid of 0 blocks is legal and starts nothing.
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), int64_t grid, int block, const Stream& stream, Arguments... arguments) {
  if (grid == 0) return;
  CHECK(grid > 0 && grid <= INT32_MAX) << "grid of " << grid << " blocks";
  kernel<<<static_cast<unsigned>(grid), block, 0, stream.get()>>>(static_cast<Parameters>(arguments)...);
  internal::CheckLaunched(reinterpret_cast<const void*>(kernel), grid, block);
}

// The same with `shared_bytes` of dynamic shared memory, more than the 48 KB that every kernel may have.
template <typename... Parameters, typename... Arguments>
void LaunchShared(void (*kernel)(Parameters...), int64_t grid, int block, size_t shared_bytes, const Stream& stream,
                  const Arguments&... arguments) {
  if (grid == 0) return;
  CHECK(grid > 0 && grid <= INT32_MAX) << "grid of " << grid << " blocks";
  CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  kernel<<<static_cast<unsigned>(grid), block, shared_bytes, stream.get()>>>(arguments...);
  internal::CheckLaunched(reinterpret_cast<const void*>(kernel), grid, block);
}

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_LAUNCH_CUH_
