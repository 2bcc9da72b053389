#ifndef SPARROW_DENSE_RELU_PRODUCT_CUH_
#define SPARROW_DENSE_RELU_PRODUCT_CUH_

// A product of our own, for the one epilogue that cuBLASLt has no fast kernel for: gradients through a layer and the
// ReLU below it, and the sums of their columns, without passing over them again. bf16, Hopper (compute capability 9.0).
//
//   d [n, in] = g [n, out] w [out, in] where x [n, in] > 0 or NaN, else 0;   sums [in] of d's columns, in float32
//
// A block computes a tile of 128 x 128. One warp keeps a ring of three stages of shared memory full, by the copy
// engine: 64 columns of g (128 x 64, rows of 128 bytes, swizzled) and 64 rows of w (64 x 128, as two boxes with rows of
// 128 bytes). Two groups of four warps multiply a stage by wgmma, each 64 rows of the tile. The stage after the last
// holds x's tile: the accumulators' owners read it, write the results over it, and the copy engine stores them. Two
// blocks are resident on a multiprocessor, so that one multiplies while the other stores.

#include <algorithm>
#include <cstdint>

#include "base/cuda/launch.cuh"
#include "dense/device_matrix.h"
#include "dense/linear_kernels.cuh"
#include "dense/precision.cuh"
#include "dense/tile_memory.cuh"
#include "dense/tile_multiply.cuh"

namespace sparrow {

namespace relu_product {

using namespace tiles;  // NOLINT: what both products are made of.

constexpr int kTile = 128;  // Rows and columns of a block's.
constexpr int kDepth = 64;  // Of a stage: 128 bytes.
constexpr int kStages = 3;
constexpr int kStageBytes = 2 * kTile * kDepth * 2;  // 32 KiB: of g and w, or of x.
constexpr int kConsumers = 256;                      // Threads that multiply; then the warp that loads.
constexpr int kBlock = kConsumers + 32;
constexpr size_t kSharedBytes = kStages * kStageBytes + 1024;  // Stages begin at multiples of 1024.

struct Arguments {
  int64_t rows;
  int64_t cols;
  int depth_blocks;
  int tiles_in_row;
  int tiles_in_column;
  float* partials;     // [tiles_in_column, tiles_in_row * kTile]; unused for one tile in a column.
  unsigned* finished;  // [tiles_in_row], 0 between launches.
  float* sums;         // [cols]; nullptr: not wanted.
};

// Bytes moved: g, x and d once, w once for each row of tiles (from L2). Bound by the tensor cores for out >= 512 or so,
// by HBM below.
__global__ void __launch_bounds__(kBlock, 2)
    Kernel(const __grid_constant__ CUtensorMap g, const __grid_constant__ CUtensorMap w,
           const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap d, const Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t memory[];
  __shared__ alignas(8) uint64_t full[kStages];
  __shared__ alignas(8) uint64_t empty[kStages];
  __shared__ alignas(16) float quarters[8][kTile];
  __shared__ bool last;
  const uint32_t stages = (SharedAddress(memory) + 1023) & ~1023u;
  uint8_t* const stages_pointer = memory + (stages - SharedAddress(memory));
  const int thread = static_cast<int>(threadIdx.x);
  const int row_tile = static_cast<int>(blockIdx.x) / a.tiles_in_row;
  const int column_tile = static_cast<int>(blockIdx.x) % a.tiles_in_row;
  const int first_row = row_tile * kTile;
  const int first_column = column_tile * kTile;

  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(SharedAddress(&full[i])) : "memory");
      // An arrival of each warp that multiplies.
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 8;" : : "r"(SharedAddress(&empty[i])) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  }
  __syncthreads();

  if (thread >= kConsumers) {
    if (thread > kConsumers) return;
    for (int i = 0; i <= a.depth_blocks; ++i) {
      const int stage = i % kStages;
      const uint32_t to = stages + stage * kStageBytes;
      const uint32_t barrier = SharedAddress(&full[stage]);
      Wait(SharedAddress(&empty[stage]), (i / kStages & 1) ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                   :
                   : "r"(barrier), "r"(kStageBytes)
                   : "memory");
      if (i < a.depth_blocks) {
        Load(to, &g, i * kDepth, first_row, barrier);
        Load(to + kStageBytes / 2, &w, first_column, i * kDepth, barrier);
        Load(to + kStageBytes / 4 * 3, &w, first_column + 64, i * kDepth, barrier);
      } else {
        Load(to, &x, first_column, first_row, barrier);
        Load(to + kStageBytes / 2, &x, first_column + 64, first_row, barrier);
      }
    }
    return;
  }

  const int group = thread / 128;  // Of warps, with rows 64 * group and on.
  const int warp = thread / 32;
  const int lane = thread % 32;
  float acc[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) acc[i] = 0;
  for (int i = 0; i < a.depth_blocks; ++i) {
    const int stage = i % kStages;
    Wait(SharedAddress(&full[stage]), i / kStages & 1);
    const uint32_t from = stages + stage * kStageBytes;
    const uint64_t rows = Descriptor(from + group * 64 * 128, 16, 1024);
    const uint64_t columns = Descriptor(from + kStageBytes / 2, kDepth * 128, 1024);
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      // 16 columns of g further: 32 bytes; 16 rows of w: 2048.
      Multiply<0, 1>(acc, rows + k * (32 >> 4), columns + k * (2048 >> 4), i + k);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
    asm volatile("wgmma.wait_group.sync.aligned 1;" : : : "memory");
    if (i > 0 && lane == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                   :
                   : "r"(SharedAddress(&empty[(i - 1) % kStages]))
                   : "memory");
    }
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(acc[i]) : : "memory");  // Not read before here.

  // x's tile: two boxes of 64 columns, rows of 128 bytes, the 16-byte pieces of row r swizzled by r % 8. A thread has
  // rows `row` and row + 8, and of each 8 columns two.
  const int x_stage = a.depth_blocks % kStages;
  Wait(SharedAddress(&full[x_stage]), a.depth_blocks / kStages & 1);
  uint8_t* const tile = stages_pointer + x_stage * kStageBytes;
  const int row = group * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
  for (int eight = 0; eight < kTile / 8; ++eight) {
    const int piece = (eight % 8 ^ row % 8) * 16 + lane % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto* const at =
          reinterpret_cast<__nv_bfloat162*>(tile + eight / 8 * (kStageBytes / 2) + (row + half * 8) * 128 + piece);
      const __nv_bfloat162 output = *at;
      const float low = !(ToFloat(output.x) <= 0) ? acc[eight * 4 + half * 2] : 0;
      const float high = !(ToFloat(output.y) <= 0) ? acc[eight * 4 + half * 2 + 1] : 0;
      *at = __floats2bfloat162_rn(low, high);
    }
  }
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  NamedBarrier(1 + group, 128);
  if (thread % 128 == 0) {
    for (int box = 0; box < 2; ++box) {
      if (first_column + box * 64 >= a.cols || first_row + group * 64 >= a.rows) continue;
      Store(&d, first_column + box * 64, first_row + group * 64,
            stages + x_stage * kStageBytes + box * (kStageBytes / 2) + group * 64 * 128);
    }
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
  }

  if (a.sums != nullptr) {
    // Each thread adds two columns over 32 rows. Rows and columns beyond the matrix hold 0.
    const int pair = thread % 64;
    const int quarter = thread / 64;
    float low = 0, high = 0;
#pragma unroll 8
    for (int r = quarter * 32; r < quarter * 32 + 32; ++r) {
      const uint8_t* const at =
          tile + pair / 32 * (kStageBytes / 2) + r * 128 + (pair % 32 / 4 ^ r % 8) * 16 + pair % 4 * 4;
      const __nv_bfloat162 values = *reinterpret_cast<const __nv_bfloat162*>(at);
      low += ToFloat(values.x);
      high += ToFloat(values.y);
    }
    quarters[quarter][2 * pair] = low;
    quarters[quarter][2 * pair + 1] = high;
    NamedBarrier(3, kConsumers);
    const int64_t column = first_column + thread;
    const int64_t pitch = int64_t{a.tiles_in_row} * kTile;
    if (thread < kTile) {
      const float total = quarters[0][thread] + quarters[1][thread] + quarters[2][thread] + quarters[3][thread];
      if (a.tiles_in_column > 1) {
        a.partials[row_tile * pitch + column] = total;
      } else if (column < a.cols) {
        a.sums[column] = total;
      }
    }
    if (a.tiles_in_column > 1) {
      __threadfence();  // The sums are seen before they are counted.
      NamedBarrier(3, kConsumers);
      if (thread == 0) {
        const unsigned others = static_cast<unsigned>(a.tiles_in_column) - 1;
        last = atomicInc(&a.finished[column_tile], others) == others;  // Back to 0 at the last.
      }
      NamedBarrier(3, kConsumers);
      if (last) {
        __threadfence();
        const int four = thread % 32 * 4;
        float4 total = {0, 0, 0, 0};
#pragma unroll 8
        for (int i = thread / 32; i < a.tiles_in_column; i += 8) {
          const float4 part = __ldcg(reinterpret_cast<const float4*>(a.partials + i * pitch + first_column + four));
          total.x += part.x;
          total.y += part.y;
          total.z += part.z;
          total.w += part.w;
        }
        *reinterpret_cast<float4*>(&quarters[thread / 32][four]) = total;
        NamedBarrier(3, kConsumers);
        if (thread < kTile && column < a.cols) {
          float all = 0;
#pragma unroll
          for (int i = 0; i < 8; ++i) all += quarters[i][thread];
          a.sums[column] = all;
        }
      }
    }
  }
  // Shared memory must stay until it is stored.
  if (thread % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" : : : "memory");
#endif
}

}  // namespace relu_product

// Whether this GPU runs products by wgmma, and this program has them for it (without sm_90a among its architectures the
// kernel is empty, and so is its shared memory).
inline bool HasTensorTiles() {
  int device = 0, major = 0, minor = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CHECK_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  cudaFuncAttributes kernel = {};
  CHECK_CUDA(cudaFuncGetAttributes(&kernel, relu_product::Kernel));
  return major == 9 && minor == 0 && kernel.sharedSizeBytes > 0;
}

// Whether that holds, and the sums of this many rows and columns have room.
inline bool CanReluProduct(int64_t rows, int64_t cols, const SumsRoom& room) {
  const int64_t row_tiles = (rows + relu_product::kTile - 1) / relu_product::kTile;
  const int64_t column_tiles = (cols + relu_product::kTile - 1) / relu_product::kTile;
  return HasTensorTiles() && column_tiles <= SumsRoom::kStripesMax &&
         row_tiles * column_tiles * relu_product::kTile <= room.partials_max && row_tiles * column_tiles <= INT32_MAX;
}

// sums null: not wanted. REQUIRES: CanReluProduct; bf16.
inline void LaunchReluProduct(const DeviceMatrix& g, const DeviceMatrix& w, const DeviceMatrix& x,
                              const DeviceMatrix& d, float* sums, const SumsRoom& room, const Stream& stream) {
  using namespace relu_product;  // NOLINT: the kernel's own constants.
  const Arguments arguments{.rows = d.rows,
                            .cols = d.cols,
                            .depth_blocks = static_cast<int>((g.cols + kDepth - 1) / kDepth),
                            .tiles_in_row = static_cast<int>((d.cols + kTile - 1) / kTile),
                            .tiles_in_column = static_cast<int>((d.rows + kTile - 1) / kTile),
                            .partials = room.partials,
                            .finished = room.finished,
                            .sums = sums};
  LaunchShared(Kernel, int64_t{arguments.tiles_in_row} * arguments.tiles_in_column, kBlock, kSharedBytes, stream,
               MapOf(g, kTile), MapOf(w, kDepth), MapOf(x, kTile), MapOf(d, kTile / 2), arguments);
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_RELU_PRODUCT_CUH_
