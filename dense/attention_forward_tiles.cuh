#ifndef SPARROW_DENSE_ATTENTION_FORWARD_TILES_CUH_
#define SPARROW_DENSE_ATTENTION_FORWARD_TILES_CUH_

// Forward attention by wgmma, after FlashAttention-2 (Dao, 2023): a row's greatest score and sum of exponentials are
// kept up to date as keys come, and what has been summed is scaled when the greatest score has grown. That is done only
// where it has grown by a factor of 2^8 of weight, which float32 sums do not feel.

#include "dense/attention_tiles.cuh"

namespace sparrow::attention_tiles {

template <int kPieces, typename Cut>
constexpr size_t kForwardSharedBytes = size_t{kBoxBytes} * kPieces*(Cut::kGroups + 2 * Cut::kBoxes * Cut::kStages) +
                                       1024;

// A block has 64 queries a group of one head; those of the end, which meet most keys, start first. Bytes moved: qkv
// once and y once; keys and values once more, from L2, for each block of a head. At head width 64 a weight takes a
// sixteenth of a multiprocessor's cycle of the tensor cores and as much of what computes exponentials; each is busy for
// about two fifths of the time. Waiting binds: for results, and a fifth of the time at barriers.
template <typename T, int kPieces, typename Cut, bool kDropout>
__global__ void __launch_bounds__(Cut::kGroups* kGroup, Cut::kBlocks)
    AttentionForwardKernel(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap y,
                           const Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kStages = Cut::kStages, kBoxes = Cut::kBoxes, kRows = kBoxes * kBox;
  constexpr int kStageBytes = 2 * kBoxes * kPieces * kBoxBytes;
  constexpr float kSlack = 8;
  extern __shared__ uint8_t memory[];
  __shared__ alignas(8) Barriers<kStages> barriers;
  const uint32_t queries = (SharedAddress(memory) + 1023) & ~1023u;  // [group][piece]
  uint8_t* const queries_pointer = memory + (queries - SharedAddress(memory));
  const uint32_t stages = queries + Cut::kGroups * kPieces * kBoxBytes;  // [stage][keys, values][box][piece]

  const int thread = static_cast<int>(threadIdx.x), group = static_cast<int>(OfWarp(thread / kGroup)),
            lane = thread % 32;
  const int number = static_cast<int>(blockIdx.x) / a.blocks_of_head;
  const int sequence = number / a.heads, head = number % a.heads;
  const int block = a.blocks_of_head - 1 - static_cast<int>(blockIdx.x) % a.blocks_of_head;
  const int block_first = block * Cut::kGroups * kBox;
  const int first = block_first + group * kBox;  // Query.
  const int uses = (min(a.length, block_first + Cut::kGroups * kBox) + kRows - 1) / kRows;

  const auto fill = [&](int i) { LoadKeysAndValues<kPieces, Cut>(&barriers, stages, &qkv, a, sequence, head, i); };
  if (thread == 0) {
    barriers.Init(Cut::kGroups);
    const uint32_t loaded = SharedAddress(&barriers.loaded);
    ExpectBytes(loaded, Cut::kGroups * kPieces * kBoxBytes);
#pragma unroll
    for (int i = 0; i < Cut::kGroups * kPieces; ++i) {
      LoadBox(queries + i * kBoxBytes, &qkv, i % kPieces * kBox, head, block_first + i / kPieces * kBox, sequence,
              loaded);
    }
    for (int i = 0; i < min(kAhead<kStages>, uses); ++i) fill(i);
  }
  __syncthreads();

  const uint32_t own = queries + group * kPieces * kBoxBytes;
  const int row = first + thread / 32 % 4 * 16 + lane / 4;  // The thread's queries: this one and row + 8.
  const HeadDropout dropout = DropoutOf<kDropout>(a, sequence, head);
  float sums[kPieces][32];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[piece][i] = 0;
  }
  float greatest[2] = {-INFINITY, -INFINITY};  // Of the scores, for powers of 2.
  float total[2] = {0, 0};                     // Of the thread's exponentials.
  Wait(SharedAddress(&barriers.loaded), 0);

  for (int i = 0; i < uses; ++i) {
    if (thread == 0 && i + kAhead<kStages> < uses) fill(i + kAhead<kStages>);
    __syncwarp();
    barriers.WaitUntilFull(i);
    const int first_key = i * kRows;
    if (first_key < first + kBox && first < a.length) {
      const uint32_t keys = OfWarp(stages + i % kStages * kStageBytes);
      const uint32_t values = keys + kBoxes * kPieces * kBoxBytes;
      float scores[kBoxes][32];
      BeginProducts();
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        MultiplyRows<T, kPieces>(scores[box], own, keys + box * kPieces * kBoxBytes);
      }
      EndProducts();
      WaitForProducts<0>();
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) Hold(scores[box]);

      if (first_key + kRows > first) {  // Keys behind a query.
#pragma unroll
        for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
          for (int e = 0; e < 32; ++e) {
            const int key = first_key + box * kBox + e / 4 * 8 + lane % 4 * 2 + e % 2;
            if (key > row + e / 2 % 2 * 8) scores[box][e] = -INFINITY;
          }
        }
      }
      float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
        for (int e = 0; e < 32; ++e) most[e / 2 % 2] = fmaxf(most[e / 2 % 2], scores[box][e]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 1));
        most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 2)) * a.scale_log2;
      }
      if (__any_sync(~0u, most[0] > greatest[0] + kSlack || most[1] > greatest[1] + kSlack)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float next = fmaxf(greatest[half], most[half]);
          const float factor = PowerOf2(greatest[half] - next);
          greatest[half] = next;
          total[half] *= factor;
#pragma unroll
          for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
            for (int e = 0; e < 32; ++e) {
              if (e / 2 % 2 == half) sums[piece][e] *= factor;
            }
          }
        }
      }
      uint32_t weights[kBoxes][4][4];
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
        for (int e = 0; e < 32; e += 2) {
          const int half = e / 2 % 2;
#pragma unroll
          for (int j = e; j < e + 2; ++j) scores[box][j] = PowerOf2(scores[box][j] * a.scale_log2 - greatest[half]);
          total[half] += scores[box][e] + scores[box][e + 1];
        }
        // What stays is scaled at the end alone.
        ForEachWeight<kDropout, false>(dropout, row, first_key + box * kBox + lane % 4 * 2, [&](int e, bool stays) {
          if (!stays) scores[box][e] = 0;
        });
        RoundSums<T>(scores[box], weights[box]);
      }
      BeginProducts();
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          MultiplyWeights<T>(sums[piece], weights[box], values + (box * kPieces + piece) * kBoxBytes);
        }
      }
      EndProducts();
      WaitForProducts<0>();
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) Hold(sums[piece]);
    }
    barriers.Release(i);
  }
  if (first >= a.length) return;

  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] += __shfl_xor_sync(~0u, total[half], 1);
    total[half] += __shfl_xor_sync(~0u, total[half], 2);
    inverse[half] = dropout.scale / total[half];
    const int query = row + half * 8;
    if (lane % 4 == 0 && query < a.length) {
      constexpr float kLog2 = 0.693147180559945f;
      a.log_sums[int64_t{number} * a.length + query] = greatest[half] * kLog2 + logf(total[half]);
    }
  }
  NamedBarrier(1 + group, kGroup);  // The queries have been read.
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    WriteBox<T>(sums[piece], inverse[0], inverse[1], queries_pointer + (group * kPieces + piece) * kBoxBytes);
  }
  PublishBoxes(group);
  if (thread % kGroup == 0) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      StoreBox(&y, piece * kBox, head, first, sequence, own + piece * kBoxBytes);
    }
    WaitForStores();
  }
#endif
}

}  // namespace sparrow::attention_tiles

#endif  // SPARROW_DENSE_ATTENTION_FORWARD_TILES_CUH_
