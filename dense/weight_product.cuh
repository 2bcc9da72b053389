#ifndef SPARROW_DENSE_WEIGHT_PRODUCT_CUH_
#define SPARROW_DENSE_WEIGHT_PRODUCT_CUH_

// The gradients of the weights and biases of several layers in one launch: at small batches each layer's alone is too
// small for a GPU. bf16, Hopper (compute capability 9.0).
//
//   w_gradients [out, in] = g^T [out, n] x [n, in],   b_gradients [out] = g^T 1,   both float32
//
// A block computes a tile of 128 x 128 of one layer. One warp keeps a ring of stages of shared memory full, by the copy
// engine: 64 rows of both factors, in pieces of 64 columns, swizzled. Two groups of four warps multiply a stage by
// wgmma, each 64 rows of the tile; in a layer's first column of tiles also by a matrix of ones, for the biases. Two
// blocks fit a multiprocessor, so a chain of layers goes on beside them.
//
// Tiles enough for the GPU: two blocks one above the other, a cluster, share x's columns: each brings half of them and
// sends it to both. Fewer: the blocks of a cluster, up to eight, share a tile, each takes a part of the rows, and each
// adds what all have of a part of the tile. Sums are in an order that depends on sizes alone.

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/cuda/launch_early.cuh"
#include "dense/device_matrix.h"
#include "dense/linear_gpu.h"
#include "dense/tile_memory.cuh"
#include "dense/tile_multiply.cuh"

namespace sparrow {

namespace weight_product {

using namespace tiles;  // NOLINT: what our products are made of.

constexpr int kTile = kWeightTile;
constexpr int kDepth = 64;       // Rows of a stage.
constexpr int kConsumers = 256;  // Threads that multiply; then the warp that loads.
constexpr int kBlock = kConsumers + 32;
constexpr int kPieceBytes = kDepth * 128;  // 64 columns.
constexpr int kStageBytes = 4 * kPieceBytes;
constexpr int kStages = 3;
constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kOnes = kRingBytes;  // Where they begin. More than are read.
constexpr int kOnesBytes = 512;
constexpr int kBarriers = kOnes + kOnesBytes;
constexpr size_t kSharedBytes = kBarriers + kStages * 2 * 8;
constexpr int kPitch = kTile + 8;              // Of a tile of floats in the ring: eight rows lie in different banks.
constexpr int kTileSums = kTile * kPitch * 4;  // Behind it, the biases'.
static_assert(kTileSums + kTile * 4 <= kRingBytes);
constexpr int kLayersMax = 8;  // Of a launch.
constexpr int kSplitsMax = 8;

struct Layer {
  float* w_gradients;
  float* b_gradients;  // nullptr: not wanted.
  int out;
  int in;
  int tile_columns;
  int first_cluster;
};

struct Arguments {
  CUtensorMap g[kLayersMax];
  CUtensorMap x[kLayersMax];
  Layer layers[kLayersMax];
  int count;
  int depth_blocks;  // Stages of all rows.
};

// acc: the group's 64 rows of the tile, sums: those of the biases, of `depth` stages. A stage that was read is free for
// so many blocks of the cluster from `first_block` on.
template <bool kSums, typename Full, typename Empty>
__device__ inline void MultiplyStages(uint32_t ring, int group, int depth, int first_block, int blocks,
                                      const Full& full, const Empty& empty, float (&acc)[64], float (&sums)[4]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = 0; i < depth; ++i) {
    Wait(full(i), i / kStages & 1);
    const uint32_t from = ring + i % kStages * kStageBytes;
    const uint64_t g = Descriptor(from + group * kPieceBytes, kPieceBytes, 1024);
    const uint64_t x = Descriptor(from + 2 * kPieceBytes, kPieceBytes, 1024);
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {  // 16 rows of 128 bytes further.
      Multiply<1, 1>(acc, g + k * (2048 >> 4), x + k * (2048 >> 4), 1);
      if constexpr (kSums) Multiply<1>(sums, g + k * (2048 >> 4), PlainDescriptor(ring + kOnes, 128, 128));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");  // The other group multiplies meanwhile.
    if (lane < blocks) ArriveIn(first_block + lane, empty(i));
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(acc[i]) : : "memory");  // Not read before here.
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[i]) : : "memory");
#endif
}

// kPair: a cluster is two blocks with a tile each; else `splits` blocks with one tile. Bytes moved: each factor once,
// in so far as L2 holds it, from there g in / 128 and x out / 256 times (out / 128 without kPair); the results once.
// Bound by the tensor cores, and for few rows by latency: the first loads, the sums over a cluster, the stores.
template <bool kPair>
__global__ void __launch_bounds__(kBlock, 2) Kernel(const __grid_constant__ Arguments a, const int splits) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t weight_memory[];
  const uint32_t ring = SharedAddress(weight_memory);
  if (ring % 1024 != 0) __trap();  // There is no other shared memory.
  const auto full = [&](int i) { return ring + kBarriers + i % kStages * 16; };
  const auto empty = [&](int i) { return full(i) + 8; };
  const int thread = static_cast<int>(threadIdx.x);
  const int blocks = kPair ? 2 : splits;  // Of the cluster.
  const int cluster = static_cast<int>(blockIdx.x) / blocks;
  const int rank = static_cast<int>(blockIdx.x) % blocks;
  int l = 0;
  while (l + 1 < a.count && cluster >= a.layers[l + 1].first_cluster) ++l;
  const Layer& layer = a.layers[l];
  const int tile = cluster - layer.first_cluster;
  const int first_in = tile % layer.tile_columns * kTile;
  const int first_out = (tile / layer.tile_columns * (kPair ? 2 : 1) + (kPair ? rank : 0)) * kTile;
  const int begin = kPair ? 0 : rank * a.depth_blocks / splits;
  const int depth = kPair ? a.depth_blocks : (rank + 1) * a.depth_blocks / splits - begin;

  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(full(i), 1);
      // An arrival of each warp that multiplies what this block brings.
      InitBarrier(empty(i), kConsumers / 32 * (kPair ? 2 : 1));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  }
  if (thread < kOnesBytes / 4) reinterpret_cast<uint32_t*>(weight_memory + kOnes)[thread] = 0x3f803f80;  // bf16: 1, 1.
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  __syncthreads();
  if (kPair) ClusterBarrier();  // Both blocks' barriers are there.

  if (thread >= kConsumers) {
    if (thread > kConsumers) return;
    WaitForPrevious();
    for (int i = 0; i < depth; ++i) {
      if (i >= kStages) Wait(empty(i), (i / kStages & 1) ^ 1);
      const uint32_t to = ring + i % kStages * kStageBytes;
      const int row = (begin + i) * kDepth;
      ExpectBytes(full(i), kStageBytes);
      Load(to, &a.g[l], first_out, row, full(i));
      Load(to + kPieceBytes, &a.g[l], first_out + 64, row, full(i));
      if constexpr (kPair) {
        constexpr uint16_t kBoth = 3;
        LoadInto(kBoth, to + (2 + rank) * kPieceBytes, &a.x[l], first_in + rank * 64, row, full(i));
      } else {
        Load(to + 2 * kPieceBytes, &a.x[l], first_in, row, full(i));
        Load(to + 3 * kPieceBytes, &a.x[l], first_in + 64, row, full(i));
      }
    }
    LetNextStart();
    // The cluster's other block arrives at this one's barriers until here.
    if constexpr (kPair) {
      for (int i = max(0, depth - kStages); i < depth; ++i) Wait(empty(i), i / kStages & 1);
    }
    return;
  }

  const int group = thread / 128;  // Of warps, with rows 64 * group and on.
  const int lane = thread % 32;
  const int row = group * 64 + thread / 32 % 4 * 16 + lane / 4;
  const int column = lane % 4 * 2;  // In each 8.
  const bool with_sums = first_in == 0 && layer.b_gradients != nullptr;
  float acc[64], sums[4];
#pragma unroll
  for (int i = 0; i < 64; ++i) acc[i] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = 0;
  if (with_sums) {
    MultiplyStages<true>(ring, group, depth, kPair ? 0 : rank, kPair ? 2 : 1, full, empty, acc, sums);
  } else {
    MultiplyStages<false>(ring, group, depth, kPair ? 0 : rank, kPair ? 2 : 1, full, empty, acc, sums);
  }
  WaitForPrevious();  // It may have read what is overwritten here.

  if (blocks == 1 || kPair) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t out = first_out + row + half * 8;
      if (out >= layer.out) continue;
#pragma unroll
      for (int eight = 0; eight < kTile / 8; ++eight) {
        const int in = first_in + eight * 8 + column;
        if (in >= layer.in) continue;
        *reinterpret_cast<float2*>(layer.w_gradients + out * layer.in + in) = {acc[eight * 4 + half * 2],
                                                                               acc[eight * 4 + half * 2 + 1]};
      }
      if (with_sums && lane % 4 == 0) layer.b_gradients[out] = sums[half * 2];
    }
    return;
  }

  NamedBarrier(3, kConsumers);  // The ring has been read.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* const to = reinterpret_cast<float*>(weight_memory) + (row + half * 8) * kPitch + column;
#pragma unroll
    for (int eight = 0; eight < kTile / 8; ++eight) {
      *reinterpret_cast<float2*>(to + eight * 8) = {acc[eight * 4 + half * 2], acc[eight * 4 + half * 2 + 1]};
    }
    if (lane % 4 == 0) reinterpret_cast<float*>(weight_memory + kTileSums)[row + half * 8] = sums[half * 2];
  }
  ClusterSync();
  constexpr int kFours = kTile / 4;  // Of a row.
  const int end = (rank + 1) * kTile * kFours / splits;
  for (int i = rank * kTile * kFours / splits + thread; i < end; i += kConsumers) {
    const int r = i / kFours, four = i % kFours * 4;
    float4 parts[kSplitsMax];
#pragma unroll
    for (int s = 0; s < kSplitsMax; ++s) {
      if (s < splits) parts[s] = LoadFrom(s, ring + (r * kPitch + four) * 4);
    }
    float4 total = parts[0];
#pragma unroll
    for (int s = 1; s < kSplitsMax; ++s) {
      if (s >= splits) break;
      total.x += parts[s].x, total.y += parts[s].y, total.z += parts[s].z, total.w += parts[s].w;
    }
    const int64_t out = first_out + r;
    if (out >= layer.out || first_in + four >= layer.in) continue;
    *reinterpret_cast<float4*>(layer.w_gradients + out * layer.in + first_in + four) = total;
  }
  if (with_sums && rank == 0 && thread < kFours) {
    float4 total = LoadFrom(0, ring + kTileSums + thread * 16);
    for (int s = 1; s < splits; ++s) {
      const float4 part = LoadFrom(s, ring + kTileSums + thread * 16);
      total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    const float each[] = {total.x, total.y, total.z, total.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int out = first_out + thread * 4 + i;
      if (out < layer.out) layer.b_gradients[out] = each[i];
    }
  }
  ClusterSync();  // Shared memory must stay until the others have read it.
#endif
}

}  // namespace weight_product

// REQUIRES: HasTensorTiles (dense/relu_product.cuh), bf16, all of the same number of rows, more than 0.
inline void LaunchWeightProducts(std::span<const LayerGradients> layers, LaunchAt at, const Stream& stream) {
  using namespace weight_product;  // NOLINT: the kernel's own constants.
  while (!layers.empty()) {
    const auto some = layers.first(std::min<size_t>(layers.size(), kLayersMax));
    layers = layers.subspan(some.size());
    int64_t tiles = 0;
    for (const LayerGradients& layer : some) tiles += WeightTiles(layer);
    Arguments arguments{};
    arguments.count = static_cast<int>(some.size());
    arguments.depth_blocks = static_cast<int>((some[0].x.rows + kDepth - 1) / kDepth);
    int splits = 1;
    while (splits < kSplitsMax && tiles * splits * 2 <= kWeightTilesAtOnce && splits * 4 <= arguments.depth_blocks) {
      splits *= 2;
    }
    const bool pair = tiles * 2 > kWeightTilesAtOnce;
    int64_t clusters = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      const LayerGradients& from = some[i];
      arguments.g[i] = MapOf(from.y_gradients, kDepth);
      arguments.x[i] = MapOf(from.x, kDepth);
      const int64_t rows_a_cluster = pair ? 2 * kTile : kTile;
      const int64_t tile_columns = (from.x.cols + kTile - 1) / kTile;
      arguments.layers[i] = {.w_gradients = from.w_gradients,
                             .b_gradients = from.b_gradients,
                             .out = static_cast<int>(from.y_gradients.cols),
                             .in = static_cast<int>(from.x.cols),
                             .tile_columns = static_cast<int>(tile_columns),
                             .first_cluster = static_cast<int>(clusters)};
      clusters += tile_columns * ((from.y_gradients.cols + rows_a_cluster - 1) / rows_a_cluster);
    }
    const int cluster = pair ? 2 : splits;
    LaunchWith(pair ? Kernel<true> : Kernel<false>,
               {.grid = clusters * cluster,
                .block = kBlock,
                .shared_bytes = kSharedBytes,
                .cluster = cluster,
                .early = at == LaunchAt::kEarly},
               stream, arguments, splits);
  }
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_WEIGHT_PRODUCT_CUH_
