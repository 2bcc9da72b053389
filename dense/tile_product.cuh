#ifndef SPARROW_DENSE_TILE_PRODUCT_CUH_
#define SPARROW_DENSE_TILE_PRODUCT_CUH_

// Products of our own for small batches, where a step is a chain of short kernels. bf16, Hopper (compute capability
// 9.0). They are launched early (base/cuda/launch_early.cuh) and may have their first tiles of weights before the
// kernel before ends; two blocks fit a multiprocessor, so the chain takes what gradients of weights beside it leave.
//
//   forward          y [n, out] = x [n, in] w^T [in, out] + b, ReLU
//   backward input   d [n, in]  = g [n, out] w [out, in], where x > 0 or NaN if asked for, else 0
//
// A block computes a tile of 128 rows by 128 or 64 columns. One warp keeps a ring of stages of shared memory full, by
// the copy engine: 64 deep of both factors, in rows of 128 bytes, swizzled. Two groups of four warps multiply a stage
// by wgmma, each 64 rows of the tile. Two blocks one above the other, a cluster, share the weights' columns: each
// brings half of them and sends it to both.

#include <cstdint>

#include "base/cuda/launch_early.cuh"
#include "dense/device_matrix.h"
#include "dense/precision.cuh"
#include "dense/tile_memory.cuh"
#include "dense/tile_multiply.cuh"

namespace sparrow {

namespace tile_product {

using namespace tiles;  // NOLINT: what both products are made of.

enum class Kind { kForward, kBackwardInput };

constexpr int kRows = 128;       // Of a block's tile.
constexpr int kDepth = 64;       // Of a stage: 128 bytes.
constexpr int kConsumers = 256;  // Threads that multiply; then the warp that loads.
constexpr int kBlock = kConsumers + 32;
constexpr int kRowsBytes = kRows * kDepth * 2;  // Of the first factor in a stage, in front of the weights.
constexpr int kPieceBytes = kDepth * 128;       // Of 64 columns of weights in a stage, backward.
constexpr int kRingBytes = 96 << 10;
template <int kCols>
constexpr int kStageBytes = (kRows + kCols) * kDepth * 2;
template <int kCols>
constexpr int kStages = kRingBytes / kStageBytes<kCols>;
template <int kCols>
constexpr size_t kSharedBytes = kRingBytes + kStages<kCols> * 2 * 8;  // And barriers.

struct Arguments {
  int64_t rows = 0;  // Of the result.
  int64_t cols = 0;
  int depth_blocks = 0;
  int cluster_columns = 0;              // Clusters side by side.
  const __nv_bfloat16* bias = nullptr;  // [cols], forward; nullptr: none.
  bool relu = false;
  bool weights_ready = false;  // The kernel before does not write the weights and the bias.
};

// A cluster: kTall blocks. Bytes moved: each factor once, in so far as L2 holds it, from there the first one cols /
// kCols and the weights rows / (kRows * kTall) times; x and the result once. Bound by latency: the first loads, some
// microseconds of tensor cores, the stores.
template <Kind kKind, int kCols, int kTall>
__global__ void __launch_bounds__(kBlock, 2)
    Kernel(const __grid_constant__ CUtensorMap first, const __grid_constant__ CUtensorMap weights,
           const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap d, const Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr bool kForward = kKind == Kind::kForward;
  constexpr int kRing = kStages<kCols>;
  constexpr int kBytes = kStageBytes<kCols>;
  extern __shared__ __align__(1024) uint8_t tile_memory[];
  const uint32_t ring = SharedAddress(tile_memory);
  if (ring % 1024 != 0) __trap();  // There is no other shared memory.
  const auto full = [&](int i) { return ring + kRingBytes + i % kRing * 16; };
  const auto empty = [&](int i) { return full(i) + 8; };
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int rank = static_cast<int>(blockIdx.x) % kTall;
  const int cluster = static_cast<int>(blockIdx.x) / kTall;
  const int first_row = (cluster / a.cluster_columns * kTall + rank) * kRows;
  const int first_column = cluster % a.cluster_columns * kCols;
  const int depth = a.depth_blocks;

  if (thread == 0) {
    for (int i = 0; i < kRing; ++i) {
      InitBarrier(full(i), 1);
      InitBarrier(empty(i),
                  kConsumers / 32 * kTall);  // An arrival of each warp that multiplies what this block brings.
    }
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  }
  __syncthreads();
  ClusterBarrier();  // All blocks' barriers are there.
  if (!a.weights_ready) WaitForPrevious();

  if (thread >= kConsumers) {
    if (thread > kConsumers) return;
    const auto load_first = [&](int i) { Load(ring + i % kRing * kBytes, &first, i * kDepth, first_row, full(i)); };
    const auto load_weights = [&](int i) {
      constexpr uint16_t kBoth = 3;
      const uint32_t to = ring + i % kRing * kBytes + kRowsBytes;
      if constexpr (kForward && kTall == 2) {
        LoadInto(kBoth, to + rank * (kCols / 2 * 128), &weights, i * kDepth, first_column + rank * (kCols / 2),
                 full(i));
      } else if constexpr (kForward) {
        Load(to, &weights, i * kDepth, first_column, full(i));
      } else if constexpr (kTall == 2) {
        static_assert(kCols == 128);
        LoadInto(kBoth, to + rank * kPieceBytes, &weights, first_column + rank * 64, i * kDepth, full(i));
      } else {
        for (int piece = 0; piece < kCols / 64; ++piece) {
          Load(to + piece * kPieceBytes, &weights, first_column + piece * 64, i * kDepth, full(i));
        }
      }
    };
    const int at_once = min(depth, kRing);
    for (int i = 0; i < at_once; ++i) {
      ExpectBytes(full(i), kBytes);
      load_weights(i);
    }
    WaitForPrevious();
    for (int i = 0; i < at_once; ++i) load_first(i);
    for (int i = at_once; i < depth; ++i) {
      Wait(empty(i), (i / kRing & 1) ^ 1);
      ExpectBytes(full(i), kBytes);
      load_weights(i);
      load_first(i);
    }
    if (!kForward && a.relu) {  // x's tile, where the next stage would be.
      Wait(empty(depth), (depth / kRing & 1) ^ 1);
      ExpectBytes(full(depth), kCols * kRows * 2);
      for (int box = 0; box < kCols / 64; ++box) {
        Load(ring + depth % kRing * kBytes + box * kRowsBytes, &x, first_column + box * 64, first_row, full(depth));
      }
    }
    LetNextStart();
    // The cluster's other block arrives at this one's barriers until here.
    for (int i = depth - at_once; i < depth; ++i) Wait(empty(i), i / kRing & 1);
    return;
  }

  const int group = thread / 128;  // Of warps, with rows 64 * group and on.
  const int row = group * 64 + warp % 4 * 16 + lane / 4;
  const int column = lane % 4 * 2;  // In each 8.
  __nv_bfloat162 bias[kForward ? kCols / 8 : 1] = {};
  if (kForward && a.bias != nullptr) {
#pragma unroll
    for (int eight = 0; eight < kCols / 8; ++eight) {
      const int64_t c = first_column + eight * 8 + column;
      if (c < a.cols) bias[kForward ? eight : 0] = *reinterpret_cast<const __nv_bfloat162*>(a.bias + c);
    }
  }

  float acc[kCols / 2];
#pragma unroll
  for (int i = 0; i < kCols / 2; ++i) acc[i] = 0;
  for (int i = 0; i < depth; ++i) {
    Wait(full(i), i / kRing & 1);
    const uint32_t from = ring + i % kRing * kBytes;
    const uint64_t rows = Descriptor(from + group * 64 * 128, kPieceBytes, 1024);
    const uint64_t columns = Descriptor(from + kRowsBytes, kPieceBytes, 1024);
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      // 16 further along the depth: 32 bytes where it is the columns, 16 rows of 128 where it is the rows.
      Multiply<0, !kForward>(acc, rows + k * (32 >> 4), columns + k * ((kForward ? 32 : 2048) >> 4), 1);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
    // The other group multiplies meanwhile.
    asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
    if (lane < kTall) ArriveIn(lane, empty(i));
  }
#pragma unroll
  for (int i = 0; i < kCols / 2; ++i) asm volatile("" : "+f"(acc[i]) : : "memory");  // Not read before here.

  // The tile: boxes of 64 columns, rows of 128 bytes, the 16-byte pieces of row r swizzled by r % 8.
  const bool through = !kForward && a.relu;
  if (through) {
    Wait(full(depth), depth / kRing & 1);
  } else {
    Wait(empty(depth), (depth / kRing & 1) ^ 1);
  }
  const int tile = depth % kRing * kBytes;
#pragma unroll
  for (int eight = 0; eight < kCols / 8; ++eight) {
    const int piece = (eight % 8 ^ row % 8) * 16 + column * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      auto* const at = reinterpret_cast<__nv_bfloat162*>(tile_memory + tile + eight / 8 * kRowsBytes +
                                                         (row + half * 8) * 128 + piece);
      float low = acc[eight * 4 + half * 2], high = acc[eight * 4 + half * 2 + 1];
      if (kForward) {
        low += ToFloat(bias[kForward ? eight : 0].x);
        high += ToFloat(bias[kForward ? eight : 0].y);
        if (a.relu && low < 0) low = 0;  // NaN stays.
        if (a.relu && high < 0) high = 0;
      } else if (through) {
        const __nv_bfloat162 output = *at;
        if (ToFloat(output.x) <= 0) low = 0;
        if (ToFloat(output.y) <= 0) high = 0;
      }
      *at = __floats2bfloat162_rn(low, high);
    }
  }
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  NamedBarrier(1 + group, 128);
  if (thread % 128 == 0) {
    for (int box = 0; box < kCols / 64; ++box) {
      if (first_column + box * 64 >= a.cols || first_row + group * 64 >= a.rows) continue;
      Store(&d, first_column + box * 64, first_row + group * 64, ring + tile + box * kRowsBytes + group * 64 * 128);
    }
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
    // Shared memory must stay until it is stored.
    asm volatile("cp.async.bulk.wait_group.read 0;" : : : "memory");
  }
#endif
}

// `x` is ignored without a ReLU, or forward.
template <Kind kKind, int kCols, int kTall>
void LaunchFor(const DeviceMatrix& first, const DeviceMatrix& weights, const DeviceMatrix& x, const DeviceMatrix& d,
               Arguments arguments, const Stream& stream) {
  const int64_t cluster_rows = (d.rows + kRows * kTall - 1) / (kRows * kTall);
  arguments.rows = d.rows;
  arguments.cols = d.cols;
  arguments.depth_blocks = static_cast<int>((first.cols + kDepth - 1) / kDepth);
  arguments.cluster_columns = static_cast<int>((d.cols + kCols - 1) / kCols);
  const bool through = kKind == Kind::kBackwardInput && arguments.relu;
  LaunchWith(Kernel<kKind, kCols, kTall>,
             {.grid = cluster_rows * arguments.cluster_columns * kTall,
              .block = kBlock,
              .shared_bytes = kSharedBytes<kCols>,
              .cluster = kTall,
              .early = true},
             stream, MapOf(first, kRows), MapOf(weights, kKind == Kind::kForward ? kCols / kTall : kDepth),
             MapOf(through ? x : d, kRows), MapOf(d, kRows / 2), arguments);
}

// Narrow tiles where wide ones would leave multiprocessors without work.
template <Kind kKind>
void Launch(const DeviceMatrix& first, const DeviceMatrix& weights, const DeviceMatrix& x, const DeviceMatrix& d,
            const Arguments& arguments, const Stream& stream) {
  constexpr int64_t kTilesMin = 100;
  const int64_t tiles = ((d.rows + kRows - 1) / kRows) * ((d.cols + 127) / 128);
  if (tiles >= kTilesMin) return LaunchFor<kKind, 128, 2>(first, weights, x, d, arguments, stream);
  LaunchFor<kKind, 64, 1>(first, weights, x, d, arguments, stream);
}

}  // namespace tile_product

// Both REQUIRE HasTensorTiles (dense/relu_product.cuh), bf16, more than 0 rows. weights_ready: the kernel queued last
// before does not write w and the bias.

// bias: nullptr: none.
inline void LaunchTileForward(const DeviceMatrix& x, const DeviceMatrix& w, const void* bias, bool relu,
                              bool weights_ready, const DeviceMatrix& y, const Stream& stream) {
  tile_product::Launch<tile_product::Kind::kForward>(
      x, w, y, y, {.bias = static_cast<const __nv_bfloat16*>(bias), .relu = relu, .weights_ready = weights_ready},
      stream);
}

// x: nullptr: no ReLU.
inline void LaunchTileBackwardInput(const DeviceMatrix& g, const DeviceMatrix& w, const DeviceMatrix* x,
                                    bool weights_ready, const DeviceMatrix& d, const Stream& stream) {
  tile_product::Launch<tile_product::Kind::kBackwardInput>(
      g, w, x != nullptr ? *x : d, d, {.relu = x != nullptr, .weights_ready = weights_ready}, stream);
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_TILE_PRODUCT_CUH_
