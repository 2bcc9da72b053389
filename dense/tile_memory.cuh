#ifndef SPARROW_DENSE_TILE_MEMORY_CUH_
#define SPARROW_DENSE_TILE_MEMORY_CUH_

// What products by wgmma on Hopper are made of: tiles of 16-bit matrices that the copy engine brings into shared memory
// and takes from there, barriers, and how wgmma wants a tile described.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstdint>

#include "base/cuda/launch_early.cuh"
#include "dense/device_matrix.h"

namespace sparrow::tiles {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void Wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

__device__ inline void Load(uint32_t to, const CUtensorMap* map, int column, int row, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               :
               : "r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier)
               : "memory");
}

__device__ inline void Store(const CUtensorMap* map, int column, int row, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               :
               : "l"(map), "r"(column), "r"(row), "r"(from)
               : "memory");
}

__device__ inline void NamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

// A matrix in shared memory with rows of 128 swizzled bytes, as wgmma wants it described. leading: bytes between its
// pieces of 64 columns where columns are contiguous (for w; else unused). stride: bytes between groups of 8 rows.
__device__ inline uint64_t Descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 |
         uint64_t{1} << 62;
}

// A matrix in shared memory that is not swizzled: cores of 8 x 16 bytes. leading, stride: bytes between them along the
// depth and across it.
__device__ inline uint64_t PlainDescriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32;
}

// Load, into the same place of each block of the cluster whose bit is in `blocks`, each of whose barriers counts it.
__device__ inline void LoadInto(uint16_t blocks, uint32_t to, const CUtensorMap* map, int column, int row,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;"
      :
      : "r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}

__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(arrivals) : "memory");
}

// Arrives, and lets the barrier wait for so many bytes too.
__device__ inline void ExpectBytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(barrier), "r"(bytes) : "memory");
}

// Where `address` of this block is in another one of the cluster.
__device__ inline uint32_t AddressIn(int block, uint32_t address) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}

// At a barrier of another block of the cluster. Orders reads by wgmma that have ended, and needs no slow fence for it.
__device__ inline void ArriveIn(int block, uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(AddressIn(block, barrier)) : "memory");
}

// All threads of all blocks of the cluster. Orders no memory, but behind fence.mbarrier_init barriers.
__device__ inline void ClusterBarrier() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" : : : "memory");
}

// The same, and what they have written to shared memory is seen.
__device__ inline void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" : : : "memory");
}

// What another block of the cluster has at `address`.
__device__ inline float4 LoadFrom(int block, uint32_t address) {
  float4 four;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(AddressIn(block, address))
               : "memory");
  return four;
}

// The driver's function that makes tensor maps.
inline PFN_cuTensorMapEncodeTiled_v12000 TensorMapEncoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    CHECK_CUDA(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
    CHECK(result == cudaDriverEntryPointSuccess);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return encoder;
}

// How the copy engine sees a matrix: boxes of 64 columns, swizzled, 0 beyond its edges.
inline CUtensorMap MapOf(const DeviceMatrix& matrix, uint32_t box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.cols), static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.stride) * 2};
  const cuuint32_t box[] = {64, box_rows};
  const cuuint32_t steps[] = {1, 1};
  const CUresult status = TensorMapEncoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix.data, sizes, strides,
                                             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(status == CUDA_SUCCESS) << "a tensor map of " << matrix.rows << " x " << matrix.cols << " with stride "
                                << matrix.stride << ": error " << static_cast<int>(status);
  return map;
}

}  // namespace sparrow::tiles

#endif  // SPARROW_DENSE_TILE_MEMORY_CUH_
