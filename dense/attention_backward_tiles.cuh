#ifndef SPARROW_DENSE_ATTENTION_BACKWARD_TILES_CUH_
#define SPARROW_DENSE_ATTENTION_BACKWARD_TILES_CUH_

// Backward attention by wgmma: a kernel for the gradients of queries and one for those of keys and values. Each
// computes the weights again, so that seven products are done where one kernel would do with five; but every sum stays
// in one group's registers, its order is fixed, and weights go from the tensor cores to the tensor cores by registers
// alone.
//
//   gradient of a score = weight * (y_gradient . value * dropout factor - mean), mean = y . y_gradient
//
// The factor is 0 or the scale. What stays is scaled at the end alone, and so the mean is divided by the scale.

#include "dense/attention_tiles.cuh"

namespace sparrow::attention_tiles {

// Of what a group keeps, two matrices, and of two matrices and the rows' numbers a stage.
template <int kPieces, typename Cut>
constexpr size_t kBackwardSharedBytes = size_t{2} * kPieces* kBoxBytes*(Cut::kGroups + Cut::kBoxes * Cut::kStages) +
                                        size_t{1} * Cut::kBoxes* Cut::kStages* kBox * 2 * sizeof(float) + 1024;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// y . y_gradient of one row of a head, by the four threads of a quad, 16 bytes at a time.
template <typename T>
__device__ inline float MeanOf(const Arguments& a, int64_t row, int head) {
  const T* const y = static_cast<const T*>(a.y) + row * a.y_stride + head * a.head_width;
  const T* const g = static_cast<const T*>(a.y_gradients) + row * a.y_gradients_stride + head * a.head_width;
  float sum = 0;
  for (int c = threadIdx.x % 4 * 8; c < a.head_width; c += 32) {
    const Pack<T, 8> left = *reinterpret_cast<const Pack<T, 8>*>(y + c);
    const Pack<T, 8> right = *reinterpret_cast<const Pack<T, 8>*>(g + c);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += ToFloat(left.values[i]) * ToFloat(right.values[i]);
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}
#endif

// A block has 64 queries a group of one head, as in the forward kernel. Before its products it computes the numbers of
// its rows that both kernels need. Bytes moved: qkv, y and its gradients once, the queries' gradients once; keys and
// values once more, from L2, for each block of a head. Three products, at 425 TFLOP/s
// where the head width is 64: as in the forward kernel, waiting binds.
template <typename T, int kPieces, typename Cut, bool kDropout>
__global__ void __launch_bounds__(Cut::kGroups* kGroup, Cut::kBlocks)
    AttentionQueryGradientsKernel(const __grid_constant__ CUtensorMap qkv,
                                  const __grid_constant__ CUtensorMap y_gradients,
                                  const __grid_constant__ CUtensorMap qkv_gradients, const Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kStages = Cut::kStages, kBoxes = Cut::kBoxes, kRows = kBoxes * kBox;
  constexpr int kStageBytes = 2 * kBoxes * kPieces * kBoxBytes;
  extern __shared__ uint8_t memory[];
  __shared__ alignas(8) Barriers<kStages> barriers;
  const uint32_t owned = (SharedAddress(memory) + 1023) & ~1023u;  // [group][queries, y's gradients][piece]
  uint8_t* const owned_pointer = memory + (owned - SharedAddress(memory));
  const uint32_t stages = owned + Cut::kGroups * 2 * kPieces * kBoxBytes;  // [stage][keys, values][box][piece]

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
    ExpectBytes(loaded, Cut::kGroups * 2 * kPieces * kBoxBytes);
#pragma unroll
    for (int g = 0; g < Cut::kGroups; ++g) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const uint32_t to = owned + (g * 2 * kPieces + piece) * kBoxBytes;
        LoadBox(to, &qkv, piece * kBox, head, block_first + g * kBox, sequence, loaded);
        LoadBox(to + kPieces * kBoxBytes, &y_gradients, piece * kBox, head, block_first + g * kBox, sequence, loaded);
      }
    }
    for (int i = 0; i < min(kAhead<kStages>, uses); ++i) fill(i);
  }
  __syncthreads();

  const HeadDropout dropout = DropoutOf<kDropout>(a, sequence, head);
  const uint32_t own = owned + group * 2 * kPieces * kBoxBytes;
  const int row = first + thread / 32 % 4 * 16 + lane / 4;  // The thread's queries: this one and row + 8.
  float log_sum[2], mean[2];
  if (first < a.length) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      constexpr float kLog2e = 1.44269504088896f;
      const int query = row + half * 8;
      const bool exists = query < a.length;  // Of a quad.
      log_sum[half] = exists ? a.log_sums[int64_t{number} * a.length + query] * kLog2e : INFINITY;
      mean[half] = MeanOf<T>(a, int64_t{sequence} * a.length + min(query, a.length - 1), head) / dropout.scale;
      if (!exists) mean[half] = 0;
      if (lane % 4 == 0) {
        float* const numbers = a.numbers + (int64_t{number} * a.padded_length + first) * 2 + (query - first);
        numbers[0] = log_sum[half];
        numbers[kBox] = mean[half];
      }
    }
  }
  float sums[kPieces][32];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[piece][i] = 0;
  }
  Wait(SharedAddress(&barriers.loaded), 0);

  for (int i = 0; i < uses; ++i) {
    if (thread == 0 && i + kAhead<kStages> < uses) fill(i + kAhead<kStages>);
    __syncwarp();
    barriers.WaitUntilFull(i);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const int first_key = i * kRows + box * kBox;
      if (first_key > first || first >= a.length) continue;
      const uint32_t keys = OfWarp(stages + i % kStages * kStageBytes + box * kPieces * kBoxBytes);
      const uint32_t values = keys + kBoxes * kPieces * kBoxBytes;
      float scores[32], gradients[32];
      BeginProducts();
      MultiplyRows<T, kPieces>(scores, own, keys);
      EndProducts();
      MultiplyRows<T, kPieces>(gradients, own + kPieces * kBoxBytes, values);
      EndProducts();
      WaitForProducts<1>();
      Hold(scores);
      if (first_key == first) {  // Keys behind a query.
#pragma unroll
        for (int e = 0; e < 32; ++e) {
          const int key = first_key + e / 4 * 8 + lane % 4 * 2 + e % 2;
          if (key > row + e / 2 % 2 * 8) scores[e] = -INFINITY;
        }
      }
#pragma unroll
      for (int e = 0; e < 32; ++e) scores[e] = PowerOf2(scores[e] * a.scale_log2 - log_sum[e / 2 % 2]);
      WaitForProducts<0>();
      Hold(gradients);
      const auto finish = [&](int e, bool stays) {
        gradients[e] = scores[e] * ((stays ? gradients[e] : 0) - mean[e / 2 % 2]);
      };
      ForEachWeight<kDropout, false>(dropout, row, first_key + lane % 4 * 2, finish);
      uint32_t pairs[4][4];
      RoundSums<T>(gradients, pairs);
      BeginProducts();
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        MultiplyWeights<T>(sums[piece], pairs, keys + piece * kBoxBytes);
      }
      EndProducts();
      WaitForProducts<0>();
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) Hold(sums[piece]);
    }
    barriers.Release(i);
  }
  if (first >= a.length) return;

  const float scale = a.scale * dropout.scale;
  NamedBarrier(1 + group, kGroup);  // The queries have been read.
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    WriteBox<T>(sums[piece], scale, scale, owned_pointer + (group * 2 * kPieces + piece) * kBoxBytes);
  }
  PublishBoxes(group);
  if (thread % kGroup == 0) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      StoreBox(&qkv_gradients, piece * kBox, head, first, sequence, own + piece * kBoxBytes);
    }
    WaitForStores();
  }
#endif
}

// A block has 64 keys a group of one head; those of the beginning, which meet most queries, start first. It multiplies
// with keys as rows and queries as columns. Bytes moved: qkv and y's gradients once, the gradients of keys and values
// once; queries and y's gradients once more, from L2, for each block of a head. Four products, at 475 TFLOP/s
// where the head width is 64: waiting binds here, too.
template <typename T, int kPieces, typename Cut, bool kDropout>
__global__ void __launch_bounds__(Cut::kGroups* kGroup, Cut::kBlocks)
    AttentionKeyGradientsKernel(const __grid_constant__ CUtensorMap qkv,
                                const __grid_constant__ CUtensorMap y_gradients,
                                const __grid_constant__ CUtensorMap qkv_gradients, const Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kStages = Cut::kStages, kBoxes = Cut::kBoxes, kRows = kBoxes * kBox;
  constexpr int kStageBytes = 2 * kBoxes * kPieces * kBoxBytes;
  constexpr int kNumbersBytes = kRows * 2 * static_cast<int>(sizeof(float));
  extern __shared__ uint8_t memory[];
  __shared__ alignas(8) Barriers<kStages> barriers;
  const uint32_t owned = (SharedAddress(memory) + 1023) & ~1023u;  // [group][keys, values][piece]
  uint8_t* const owned_pointer = memory + (owned - SharedAddress(memory));
  const uint32_t stages = owned + Cut::kGroups * 2 * kPieces * kBoxBytes;  // [stage][queries, gradients][box][piece]
  const uint32_t numbers = stages + kStages * kStageBytes;                 // [stage][box][logarithm, mean][64]
  const float* const numbers_pointer = reinterpret_cast<const float*>(memory + (numbers - SharedAddress(memory)));

  const int thread = static_cast<int>(threadIdx.x), group = static_cast<int>(OfWarp(thread / kGroup)),
            lane = thread % 32;
  const int number = static_cast<int>(blockIdx.x) / a.blocks_of_head;
  const int sequence = number / a.heads, head = number % a.heads;
  const int block_first = static_cast<int>(blockIdx.x) % a.blocks_of_head * Cut::kGroups * kBox;
  const int first = block_first + group * kBox;  // Key.
  const int before = block_first / kRows;        // Stages of queries that meet none of the block's keys.
  const int uses = (a.length + kRows - 1) / kRows - before;

  const auto fill = [&](int i) {
    barriers.WaitUntilEmpty(i);
    const uint32_t full = SharedAddress(&barriers.full[i % kStages]);
    const uint32_t to = stages + i % kStages * kStageBytes;
    const int first_query = (before + i) * kRows;
    // The numbers of rows end with the sequence's last box.
    const uint32_t numbers_bytes = min(kRows, a.padded_length - first_query) * 2 * static_cast<int>(sizeof(float));
    ExpectBytes(full, kStageBytes + numbers_bytes);
    LoadBytes(numbers + i % kStages * kNumbersBytes, a.numbers + (int64_t{number} * a.padded_length + first_query) * 2,
              numbers_bytes, full);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const uint32_t to_box = to + (box * kPieces + piece) * kBoxBytes;
        LoadBox(to_box, &qkv, piece * kBox, head, first_query + box * kBox, sequence, full);
        LoadBox(to_box + kBoxes * kPieces * kBoxBytes, &y_gradients, piece * kBox, head, first_query + box * kBox,
                sequence, full);
      }
    }
  };
  if (thread == 0) {
    barriers.Init(Cut::kGroups);
    const uint32_t loaded = SharedAddress(&barriers.loaded);
    ExpectBytes(loaded, Cut::kGroups * 2 * kPieces * kBoxBytes);
#pragma unroll
    for (int i = 0; i < Cut::kGroups * 2 * kPieces; ++i) {
      const int g = i / (2 * kPieces), part = i / kPieces % 2;
      LoadBox(owned + i * kBoxBytes, &qkv, i % kPieces * kBox, (1 + part) * a.heads + head, block_first + g * kBox,
              sequence, loaded);
    }
    for (int i = 0; i < min(kAhead<kStages>, uses); ++i) fill(i);
  }
  __syncthreads();

  const HeadDropout dropout = DropoutOf<kDropout>(a, sequence, head);
  const uint32_t own = owned + group * 2 * kPieces * kBoxBytes;
  const int row = first + thread / 32 % 4 * 16 + lane / 4;  // The thread's keys: this one and row + 8.
  float key_sums[kPieces][32], value_sums[kPieces][32];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 32; ++i) key_sums[piece][i] = value_sums[piece][i] = 0;
  }
  Wait(SharedAddress(&barriers.loaded), 0);

  for (int i = 0; i < uses; ++i) {
    if (thread == 0 && i + kAhead<kStages> < uses) fill(i + kAhead<kStages>);
    __syncwarp();
    barriers.WaitUntilFull(i);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const int first_query = (before + i) * kRows + box * kBox;
      if (first_query < first || first_query >= a.length) continue;
      const uint32_t queries = OfWarp(stages + i % kStages * kStageBytes + box * kPieces * kBoxBytes);
      const uint32_t outputs = queries + kBoxes * kPieces * kBoxBytes;  // Their gradients.
      // The thread's columns: those of e are 8 (e / 4) + lane % 4 * 2 + e % 2, so two are side by side.
      const float2* const log_sums =
          reinterpret_cast<const float2*>(numbers_pointer + (i % kStages * kBoxes + box) * 2 * kBox) + lane % 4;
      const float2* const means = log_sums + kBox / 2;
      float scores[32], gradients[32];
      BeginProducts();
      MultiplyRows<T, kPieces>(scores, own, queries);
      EndProducts();
      MultiplyRows<T, kPieces>(gradients, own + kPieces * kBoxBytes, outputs);
      EndProducts();
      WaitForProducts<1>();
      Hold(scores);
      if (first_query == first) {  // Keys behind a query.
#pragma unroll
        for (int e = 0; e < 32; ++e) {
          const int query = first_query + e / 4 * 8 + lane % 4 * 2 + e % 2;
          if (row + e / 2 % 2 * 8 > query) scores[e] = -INFINITY;
        }
      }
#pragma unroll
      for (int e = 0; e < 32; e += 4) {
        const float2 two = log_sums[e];
#pragma unroll
        for (int j = e; j < e + 4; ++j) {
          scores[j] = PowerOf2(scores[j] * a.scale_log2 - (j % 2 == 0 ? two.x : two.y));
        }
      }
      WaitForProducts<0>();
      Hold(gradients);
      const auto finish = [&](int e, bool stays) {
        const float2 two = means[e / 4 * 4];
        gradients[e] = scores[e] * ((stays ? gradients[e] : 0) - (e % 2 == 0 ? two.x : two.y));
        scores[e] = stays ? scores[e] : 0;
      };
      ForEachWeight<kDropout, true>(dropout, row, first_query + lane % 4 * 2, finish);
      uint32_t weights[4][4], pairs[4][4];
      RoundSums<T>(scores, weights);
      RoundSums<T>(gradients, pairs);
      BeginProducts();
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        MultiplyWeights<T>(value_sums[piece], weights, outputs + piece * kBoxBytes);
        MultiplyWeights<T>(key_sums[piece], pairs, queries + piece * kBoxBytes);
      }
      EndProducts();
      WaitForProducts<0>();
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        Hold(value_sums[piece]);
        Hold(key_sums[piece]);
      }
    }
    barriers.Release(i);
  }
  if (first >= a.length) return;

  const float key_scale = a.scale * dropout.scale;
  NamedBarrier(1 + group, kGroup);  // Keys and values have been read.
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    uint8_t* const box = owned_pointer + (group * 2 * kPieces + piece) * kBoxBytes;
    WriteBox<T>(key_sums[piece], key_scale, key_scale, box);
    WriteBox<T>(value_sums[piece], dropout.scale, dropout.scale, box + kPieces * kBoxBytes);
  }
  PublishBoxes(group);
  if (thread % kGroup == 0) {
#pragma unroll
    for (int i = 0; i < 2 * kPieces; ++i) {
      StoreBox(&qkv_gradients, i % kPieces * kBox, (1 + i / kPieces) * a.heads + head, first, sequence,
               own + i * kBoxBytes);
    }
    WaitForStores();
  }
#endif
}

}  // namespace sparrow::attention_tiles

#endif  // SPARROW_DENSE_ATTENTION_BACKWARD_TILES_CUH_
