#ifndef SPARROW_DENSE_ATTENTION_TILES_CUH_
#define SPARROW_DENSE_ATTENTION_TILES_CUH_

// What attention by wgmma on Hopper is made of. Tiles lie in shared memory as boxes of 64 rows by 64 columns of 16-bit
// numbers: rows of 128 bytes, swizzled, as the copy engine brings them. It sees a matrix as [sequences, length, heads,
// head width]: what lies beyond a head's columns or a sequence's rows is read as 0 and not written.

#include <cstdint>

#include "dense/attention_gpu.h"
#include "dense/attention_multiply.cuh"
#include "dense/precision.cuh"
#include "dense/tile_memory.cuh"

namespace sparrow::attention_tiles {

using namespace tiles;  // NOLINT: what products are made of.

constexpr int kBox = 64;  // Rows and columns.
constexpr int kBoxBytes = kBox * kBox * 2;
constexpr int kGroup = 128;    // Threads that multiply together: 64 rows of a result.
constexpr int kHeadMax = 128;  // Columns.

// How a kernel cuts its work. A block has kGroups groups, each with 64 rows of its own (queries, or keys), and goes
// through what they meet (keys, or queries) in stages of kBoxes boxes of rows, kStages of which have room. kBlocks
// blocks are on a multiprocessor: while one group computes weights, another multiplies.
template <int kGroups_, int kBoxes_, int kStages_, int kBlocks_>
struct Tiling {
  static constexpr int kGroups = kGroups_;
  static constexpr int kBoxes = kBoxes_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;
};

struct Arguments {
  int length;
  int heads;
  int head_width;
  int blocks_of_head;
  float scale;       // 1 / sqrt(head_width)
  float scale_log2;  // The same, for powers of 2.
  AttentionDropoutGpu dropout;
  float* log_sums;  // [sequences, heads, length]; backward only reads it.
  // Of each row of weights, what backward needs: the logarithm of its sum in base 2, and its mean, y . dy. Rows beyond
  // a sequence have infinity and 0, which make their weights 0.
  float* numbers;  // [sequences, heads, padded_length / 64, {logarithm, mean}, 64]
  int padded_length;
  const void* y;  // Of the matrices' type.
  int64_t y_stride;
  const void* y_gradients;
  int64_t y_gradients_stride;
};

constexpr int64_t PaddedLength(int64_t length) { return (length + kBox - 1) / kBox * kBox; }

// How the copy engine sees a matrix of [sequences * length, heads * head_width].
inline CUtensorMap HeadsMapOf(const DeviceMatrix& matrix, Precision precision, const AttentionShape& shape) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(shape.head_width),
                              static_cast<cuuint64_t>(matrix.cols / shape.head_width),
                              static_cast<cuuint64_t>(shape.length), static_cast<cuuint64_t>(shape.sequences)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(shape.head_width) * 2,
                                static_cast<cuuint64_t>(matrix.stride) * 2,
                                static_cast<cuuint64_t>(matrix.stride * shape.length) * 2};
  const cuuint32_t box[] = {kBox, 1, kBox, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUtensorMapDataType type =
      precision == Precision::kBfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult status = TensorMapEncoder()(&map, type, 4, matrix.data, sizes, strides, box, steps,
                                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(status == CUDA_SUCCESS) << "a tensor map of " << matrix.rows << " x " << matrix.cols << " with stride "
                                << matrix.stride << " in heads of " << shape.head_width << ": error "
                                << static_cast<int>(status);
  return map;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ inline void LoadBox(uint32_t to, const CUtensorMap* map, int column, int head, int row, int sequence,
                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
      :
      : "r"(to), "l"(map), "r"(column), "r"(head), "r"(row), "r"(sequence), "r"(barrier)
      : "memory");
}

__device__ inline void StoreBox(const CUtensorMap* map, int column, int head, int row, int sequence, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
               :
               : "l"(map), "r"(column), "r"(head), "r"(row), "r"(sequence), "r"(from)
               : "memory");
}

// Bytes, a multiple of 16, at multiples of 16.
__device__ inline void LoadBytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}

// The barriers of a block: one for what it loads once, and two a stage.
template <int kStages>
struct Barriers {
  uint64_t loaded;
  uint64_t full[kStages];
  uint64_t empty[kStages];

  __device__ void Init(int groups) {
    InitBarrier(SharedAddress(&loaded), 1);
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(SharedAddress(&full[i]), 1);
      InitBarrier(SharedAddress(&empty[i]), groups * (kGroup / 32));  // An arrival of each warp.
    }
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  }
  // Of use i of the ring: waits until use i - kStages has ended.
  __device__ void WaitUntilEmpty(int i) {
    if (i >= kStages) Wait(SharedAddress(&empty[i % kStages]), (i / kStages & 1) ^ 1);
  }
  __device__ void WaitUntilFull(int i) { Wait(SharedAddress(&full[i % kStages]), i / kStages & 1); }
  // By all threads of a warp that is done with use i.
  __device__ void Release(int i) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(SharedAddress(&empty[i % kStages]));
  }
};

// Use i of the ring `stages` [stage][keys, values][box][piece]: keys and values from i * kBoxes * kBox on of a head.
template <int kPieces, typename Cut>
__device__ inline void LoadKeysAndValues(Barriers<Cut::kStages>* barriers, uint32_t stages, const CUtensorMap* qkv,
                                         const Arguments& a, int sequence, int head, int i) {
  constexpr int kBoxes = Cut::kBoxes, kStageBytes = 2 * kBoxes * kPieces * kBoxBytes;
  barriers->WaitUntilEmpty(i);
  const uint32_t full = SharedAddress(&barriers->full[i % Cut::kStages]);
  const uint32_t to = stages + i % Cut::kStages * kStageBytes;
  ExpectBytes(full, kStageBytes);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        LoadBox(to + ((part * kBoxes + box) * kPieces + piece) * kBoxBytes, qkv, piece * kBox,
                (part + 1) * a.heads + head, (i * kBoxes + box) * kBox, sequence, full);
      }
    }
  }
}

// How many stages are asked for ahead of the one in use. One less than have room where that is possible: so the thread
// that asks seldom waits for other groups.
template <int kStages>
constexpr int kAhead = kStages > 2 ? kStages - 2 : kStages - 1;

// What is the same for all threads of a warp, in a form that tells the compiler so: it then computes how wgmma wants
// factors described once for all of them.
__device__ inline uint32_t OfWarp(uint32_t x) { return __shfl_sync(~0u, x, 0); }

__device__ inline float PowerOf2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Dropout of a block's head.
template <bool kDropout>
__device__ inline HeadDropout DropoutOf(const Arguments& a, int sequence, int head) {
  HeadDropout dropout;
  if constexpr (kDropout) {
    dropout = a.dropout.Of(sequence, a.heads, head);
    dropout.key = OfWarp(dropout.key);
  }
  return dropout;
}

// Calls use(e, stays) for each of a thread's 32 weights of a box; stays: dropout keeps it. Rows are queries, or keys
// where kKeyRows; row, column: of weight 0.
template <bool kDropout, bool kKeyRows, typename Use>
__device__ inline void ForEachWeight(const HeadDropout& dropout, int row, int column, const Use& use) {
  if constexpr (!kDropout) {
#pragma unroll
    for (int e = 0; e < 32; ++e) use(e, true);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // Columns c, c + 1, c + 8 and c + 9, of rows `row` and row + 8.
      const int c = column + 16 * i;
      uint32_t words[2];  // Of columns c and c + 1.
      if constexpr (kKeyRows) {
        // The thread whose key is the other of the two has the same columns, so each computes the bits of one for both.
        const bool odd = row & 1;
        const RandomWords bits = dropout.BitsOf(c + odd, row & ~1);
        const uint32_t own = odd ? bits.words[1] : bits.words[0];
        const uint32_t others = __shfl_xor_sync(~0u, odd ? bits.words[0] : bits.words[1], 4);
        words[0] = odd ? others : own;
        words[1] = odd ? own : others;
      } else {
        const RandomWords bits = dropout.BitsOf(row, c);
        words[0] = bits.words[0];
        words[1] = bits.words[1];
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          const int query_on = part / 2, key_on = part % 2;
          const int e = 8 * i + j + (kKeyRows ? 4 * query_on + 2 * key_on : 4 * key_on + 2 * query_on);
          use(e, dropout.Keeps(words[j], query_on, key_on));
        }
      }
    }
  }
}

// A group's sums as the left factors of products, 16 columns each.
template <typename T>
__device__ inline void RoundSums(const float (&sums)[32], uint32_t (&pairs)[4][4]) {
#pragma unroll
  for (int e = 0; e < 32; e += 2) pairs[e / 8][e % 8 / 2] = RoundedTwo(T{}, sums[e], sums[e + 1]);
}

// sums = rows of kPieces boxes from `a` by rows of those from `b`, over their columns.
template <typename T, int kPieces>
__device__ inline void MultiplyRows(float (&sums)[32], uint32_t a, uint32_t b) {
  const uint32_t from_a = DescriptionOf(a), from_b = DescriptionOf(b);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int k = 0; k < kBox / 16; ++k) {
      const uint32_t further = piece * (kBoxBytes >> 4) + k * kNextColumns;
      Multiply(T{}, sums, from_a + further, from_b + further, piece + k);
    }
  }
}

// sums += weights by the rows of box `b`.
template <typename T>
__device__ inline void MultiplyWeights(float (&sums)[32], const uint32_t (&weights)[4][4], uint32_t b) {
  const uint32_t from_b = DescriptionOf(b);
#pragma unroll
  for (int k = 0; k < kBox / 16; ++k) Multiply<1>(T{}, sums, weights[k], from_b + k * kNextRows, 1);
}

// Writes a group's sums, times the factor of each of the thread's two rows, to `box`, from where the copy engine can
// store it.
template <typename T>
__device__ inline void WriteBox(const float (&sums)[32], float factor0, float factor1, uint8_t* box) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int piece = (i ^ row % 8) * 16 + lane % 4 * 4;
    *reinterpret_cast<uint32_t*>(box + row * 128 + piece) =
        RoundedTwo(T{}, sums[4 * i] * factor0, sums[4 * i + 1] * factor0);
    *reinterpret_cast<uint32_t*>(box + (row + 8) * 128 + piece) =
        RoundedTwo(T{}, sums[4 * i + 2] * factor1, sums[4 * i + 3] * factor1);
  }
}

// By all threads of a group, before its first thread stores what they have written.
__device__ inline void PublishBoxes(int group) {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  NamedBarrier(1 + group, kGroup);
}

// Shared memory must stay until it is stored.
__device__ inline void WaitForStores() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" : : : "memory");
}

#endif

}  // namespace sparrow::attention_tiles

#endif  // SPARROW_DENSE_ATTENTION_TILES_CUH_
