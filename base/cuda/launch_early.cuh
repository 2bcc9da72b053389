#ifndef SPARROW_BASE_CUDA_LAUNCH_EARLY_CUH_
#define SPARROW_BASE_CUDA_LAUNCH_EARLY_CUH_

// Launches of kernels that begin before the one before has ended (CUDA: programmatic dependent launch), or in clusters.

#include "base/cuda/launch.cuh"

namespace sparrow {

// How a kernel is started by LaunchWith.
struct LaunchShape {
  int64_t grid = 0;
  int block = 0;
  size_t shared_bytes = 0;  // Dynamic; may be more than the 48 KB that every kernel may have.
  int cluster = 1;          // Consecutive blocks that run at the same time, near to each other; divides the grid.
  bool early = false;       // The kernel begins with WaitForPrevious, see there.
};

// Where a kernel that was launched early waits until all that was queued before it has ended and is seen. (Elsewhere it
// does nothing.) Launching a kernel takes about a microsecond; launched early, its blocks start where there is room
// while those of the kernel before end, and what they do until here is done meanwhile. That may only read, and only
// what the kernel queued last before does not write.
__device__ inline void WaitForPrevious() { asm volatile("griddepcontrol.wait;" : : : "memory"); }

// Lets the blocks of a kernel that is launched early behind this one start when all blocks of this one have come here
// or ended. REQUIRES: behind WaitForPrevious, so that of all kernels before at most one runs while the next one waits;
// or a kernel that is not launched early.
__device__ inline void LetNextStart() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }

template <typename... Parameters, typename... Arguments>
void LaunchWith(void (*kernel)(Parameters...), const LaunchShape& shape, const Stream& stream,
                const Arguments&... arguments) {
  if (shape.grid == 0) return;
  CHECK(shape.grid > 0 && shape.grid <= INT32_MAX) << "grid of " << shape.grid << " blocks";
  constexpr size_t kSharedBytesOfAll = 48 << 10;
  if (shape.shared_bytes > kSharedBytesOfAll) {
    CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)));
  }
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.grid));
  config.blockDim = dim3(static_cast<unsigned>(shape.block));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.get();
  config.attrs = attributes;
  config.numAttrs = count;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
  internal::CheckLaunched(reinterpret_cast<const void*>(kernel), shape.grid, shape.block);
}

// Launch, early.
template <typename... Parameters, typename... Arguments>
void LaunchEarly(void (*kernel)(Parameters...), int64_t grid, int block, const Stream& stream,
                 const Arguments&... arguments) {
  LaunchWith(kernel, {.grid = grid, .block = block, .early = true}, stream, arguments...);
}

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_LAUNCH_EARLY_CUH_
