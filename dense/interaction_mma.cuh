#ifndef SPARROW_DENSE_INTERACTION_MMA_CUH_
#define SPARROW_DENSE_INTERACTION_MMA_CUH_

// The interaction by tensor cores: 16-bit vectors of 16, 32, 64 or 128 numbers, at most 32 of them, a warp a sample. X
// [32, D] is the sample's matrix of vectors, with rows of 0 after the last.
//
// X goes from memory straight into registers, 16 bytes a thread and load. That works because the order in which a
// product sums is free, and so is the order in which its columns are computed: rather than bring X into the order of
// mma's fragments by way of shared memory, each kernel gives the tensor cores the columns in the order in which the
// loads leave them. Only the triangle of products, whose rows have odd lengths, passes through shared memory.
//
// Fragments of mma.m16n8k16 (PTX ISA), with g = lane / 4 and t = lane % 4: a thread holds of A [16, 16] the pairs
// (row g, columns 2t and 2t + 1), (g + 8, the same), (g, 2t + 8 and 2t + 9), (g + 8, those); of B [16, 8] the pairs
// (rows 2t and 2t + 1, column g), (rows 2t + 8 and 2t + 9, column g); of C [16, 8] (g, 2t), (g, 2t + 1), (g + 8, 2t),
// (g + 8, 2t + 1).

#include <cstdint>

#include "base/cuda/launch_early.cuh"
#include "dense/interaction_gpu.h"
#include "dense/precision.cuh"

namespace sparrow {

// Where the vectors of samples lie, or their gradients: number 0 in `bottom`, if there is one, the others in `sparse`.
template <typename T>
struct SampleVectors {
  T* bottom;  // nullptr: none.
  int64_t bottom_stride;
  T* sparse;
  int64_t sparse_stride;
  int64_t dim;

  // Of one sample: vector 0, and vector 1, which the others follow.
  struct Row {
    T* first;
    T* others;
    __device__ T* At(int64_t vector, int64_t dim) const { return vector == 0 ? first : others + (vector - 1) * dim; }
  };
  __device__ Row Of(int64_t sample) const {
    T* const features = sparse + sample * sparse_stride;
    return bottom != nullptr ? Row{bottom + sample * bottom_stride, features} : Row{features, features + dim};
  }
};

namespace mma {

constexpr int kWarps = 4;  // Samples a block.
constexpr int kBlock = 32 * kWarps;
// On a multiprocessor, which leaves 128 registers a thread: with one more in flight for a few bytes in local memory the
// kernel is a tenth faster than with the 150 that it would take.
constexpr int kBackwardBlocks = 4;
constexpr int kVectorsMax = 32;
constexpr int kDimMax = 128;
// Of a sample: the bottom's vector and a triangle of kVectorsMax rows; a multiple of kColumnsMultiple.
constexpr int kOutputsMax = kDimMax + kVectorsMax * (kVectorsMax - 1) / 2;
static_assert(kOutputsMax % kColumnsMultiple == 0);

__device__ inline void Product(__nv_bfloat16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void Product(__half, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Where row i of the lower triangle without its diagonal begins.
__device__ inline int RowStart(int i) { return i * (i - 1) / 2; }

template <typename T>
struct ForwardArguments {
  SampleVectors<const T> x;
  GatheredVectors gathered;  // Used by the gathering kernel, which writes the vectors to `sparse`.
  T* sparse;
  int64_t sparse_stride;
  T* out;
  int64_t out_stride;
  int64_t rows;
  int vectors;
  int outputs;
  int padded;  // PaddedColumns(outputs)
  bool vectors_ready;
};

// kPairs pairs of numbers from 2 * kPairs floats.
template <typename T, int kPairs>
__device__ Pack<uint32_t, kPairs> RoundedPairs(const float* from) {
  Pack<uint32_t, kPairs> pairs;
#pragma unroll
  for (int i = 0; i < kPairs / 2; ++i) {
    const float4 four = __ldg(reinterpret_cast<const float4*>(from) + i);
    pairs.values[2 * i] = RoundedPair<T>(four.x, four.y);
    pairs.values[2 * i + 1] = RoundedPair<T>(four.z, four.w);
  }
  return pairs;
}

// The lower triangle of X X^T. A warp a sample. Row r of X is read by the four threads g = r % 8, 16 bytes (8 at D =
// 16) each and load, so a load of the warp covers 64 consecutive bytes of eight vectors. What a load leaves in a thread
// are pairs of columns; pair p of all threads together are the columns of one half of a step of 16. The same registers
// serve as A, whose rows are X's, and as B, whose columns are X's rows. Six of eight products of 16 by 8 vectors reach
// below the diagonal; the rest is not computed.
// Bytes moved: V D 2 read and (outputs, padded) 2 written a sample; gathering reads V D 4 and a slot of 4 for each
// feature, and writes the vectors too. Bound by HBM: at V = 27 and D = 128 a sample of 7.9 KB takes 48 products, a
// third of the time that its bytes take.
template <typename T, int kDim, bool kGather>
__global__ void __launch_bounds__(kBlock) InteractionForwardKernel(ForwardArguments<T> a) {
  constexpr int kPairs = kDim >= 32 ? 4 : 2;  // In a thread's load.
  constexpr int kLoadCols = 4 * 2 * kPairs;   // Columns that a load covers.
  constexpr int kLoads = kDim / kLoadCols;
  constexpr int kGroups = kVectorsMax / 8;  // Of eight rows.
  using Load = Pack<uint32_t, kPairs>;
  __shared__ alignas(16) T results[kWarps][kOutputsMax];

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t sample = int64_t{blockIdx.x} * kWarps + warp;
  if (sample >= a.rows) return;  // The whole warp.
  const bool has_bottom = a.x.bottom != nullptr;

  const typename SampleVectors<const T>::Row vectors = a.x.Of(sample);
  const int column = 2 * kPairs * t;

  if (!a.vectors_ready) WaitForPrevious();
  Load x[kGroups][kLoads] = {};
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int vector = 8 * group + g;
    if (vector >= a.vectors || (has_bottom && vector == 0)) continue;
    if (kGather) {
      const int feature = vector - (has_bottom ? 1 : 0);
      const uint32_t slot = __ldg(a.gathered.slots + feature * a.rows + sample);
      const float* from = reinterpret_cast<const float*>(a.gathered.records + slot * a.gathered.slot_bytes) + column;
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        x[group][load] = RoundedPairs<T, kPairs>(from + load * kLoadCols);
      }
    } else {
      const T* from = vectors.At(vector, kDim) + column;
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        x[group][load] = *reinterpret_cast<const Load*>(from + load * kLoadCols);
      }
    }
  }

  WaitForPrevious();
  if (has_bottom && g == 0) {
    const T* from = vectors.first + column;
#pragma unroll
    for (int load = 0; load < kLoads; ++load) x[0][load] = *reinterpret_cast<const Load*>(from + load * kLoadCols);
  }

  if constexpr (kGather) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int feature = 8 * group + g - (has_bottom ? 1 : 0);
      if (feature < 0 || 8 * group + g >= a.vectors) continue;
      T* const sparse = a.sparse + sample * a.sparse_stride + feature * kDim + 2 * kPairs * t;
#pragma unroll
      for (int load = 0; load < kLoads; ++load) Store(sparse + load * kLoadCols, x[group][load]);
    }
  }

  T* const result = results[warp];
  T* to = result;
  if (has_bottom) {
    if (g == 0) {
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        *reinterpret_cast<Load*>(to + load * kLoadCols + 2 * kPairs * t) = x[0][load];
      }
    }
    to += kDim;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // Rows 16 * half and the following 16 of the triangle.
    if (16 * half >= a.vectors) break;
    float dots[4][4] = {};
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
#pragma unroll
      for (int step = 0; step < kPairs / 2; ++step) {
        const uint32_t left[4] = {x[2 * half][load].values[2 * step], x[2 * half + 1][load].values[2 * step],
                                  x[2 * half][load].values[2 * step + 1], x[2 * half + 1][load].values[2 * step + 1]};
#pragma unroll
        for (int group = 0; group < 2 * half + 2; ++group) {
          Product(T{}, dots[group], left, x[group][load].values[2 * step], x[group][load].values[2 * step + 1]);
        }
      }
    }
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int row = 16 * half + 8 * below + g;
      T* const row_to = to + RowStart(row) + 2 * t;
      if (row >= a.vectors) continue;
#pragma unroll
      for (int group = 0; group < 2 * half + 1 + below; ++group) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * group + 2 * t + e < row) row_to[8 * group + e] = FromFloat<T>(dots[group][2 * below + e]);
        }
      }
    }
  }
  if (lane < a.padded - a.outputs) result[a.outputs + lane] = FromFloat<T>(0);
  LetNextStart();
  __syncwarp();
  const uint4* const from = reinterpret_cast<const uint4*>(result);
  uint4* const out = reinterpret_cast<uint4*>(a.out + sample * a.out_stride);
  for (int i = lane; i < a.padded / 8; i += 32) out[i] = from[i];
}

template <typename T>
struct BackwardArguments {
  SampleVectors<const T> x;
  const T* out_gradients;
  int64_t out_stride;
  SampleVectors<T> gradients;
  int64_t rows;
  int vectors;
  int outputs;
  int padded;  // PaddedColumns(outputs)
  bool bottom_relu;
  bool vectors_ready;
};

// The gradients by the vectors are G X, with G [32, 32] symmetric, its diagonal 0 and its lower triangle the gradients
// by the products. A warp a sample. G passes through shared memory, from where each thread takes its pairs of A. Of X a
// thread holds, for the rows 2t, 2t + 1, 2t + 8 and 2t + 9 of each step, kTiles consecutive columns a block of columns:
// column j of them is column g of tile j. So B's pairs are halves of two registers, and the kTiles tiles of C leave
// consecutive columns of a row in a thread, which writes 16 bytes (8 at D = 16) at a time.
// Bytes moved: (V D + outputs, padded) 2 read and V D 2 written a sample. Bound by HBM: at V = 27 and D = 128 a sample
// of 14.8 KB takes 64 products and about a quarter of the instructions that the multiprocessor can start in that time.
template <typename T, int kDim>
__global__ void __launch_bounds__(kBlock, kBackwardBlocks) InteractionBackwardKernel(BackwardArguments<T> a) {
  constexpr int kTiles = kDim >= 64 ? 8 : kDim / 8;  // Of eight columns in a block of them.
  constexpr int kBlocks = kDim / (8 * kTiles);
  using Load = Pack<uint32_t, kTiles / 2>;
  __shared__ alignas(16) T staged[kWarps][kOutputsMax];

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t sample = int64_t{blockIdx.x} * kWarps + warp;
  if (sample >= a.rows) return;  // The whole warp.
  const bool has_bottom = a.x.bottom != nullptr;
  const typename SampleVectors<const T>::Row from = a.x.Of(sample);
  const typename SampleVectors<T>::Row to = a.gradients.Of(sample);
  // Where in a block of columns the thread's columns begin. With eight tiles the even threads' columns precede the odd
  // ones', so that what four threads write at a time is consecutive.
  const int column = kTiles * (kTiles == 8 ? g / 2 + 4 * (g % 2) : g);

  if (!a.vectors_ready) WaitForPrevious();
  Load x[2][4][kBlocks] = {};  // [step][2t, 2t + 1, 2t + 8, 2t + 9][block]
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int vector = 16 * step + 2 * t + q % 2 + 8 * (q / 2);
      if (vector >= a.vectors) continue;
      const T* const numbers = from.At(vector, kDim) + column;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        x[step][q][block] = *reinterpret_cast<const Load*>(numbers + block * 8 * kTiles);
      }
    }
  }

  WaitForPrevious();
  T* const direct = staged[warp];  // The bottom's gradient by itself, then the triangle, then 0.
  const uint4* const out = reinterpret_cast<const uint4*>(a.out_gradients + sample * a.out_stride);
  for (int i = lane; i < kOutputsMax / 8; i += 32) {
    reinterpret_cast<uint4*>(direct)[i] = i < a.padded / 8 ? out[i] : uint4{0, 0, 0, 0};
  }
  __syncwarp();
  if (lane < a.padded - a.outputs) direct[a.outputs + lane] = FromFloat<T>(0);
  __syncwarp();
  // A row or column beyond the last vector lies behind the triangle's end, where 0 is.
  const T* const triangle = direct + (has_bottom ? kDim : 0);
  uint32_t left[2][2][4];  // [half of the rows][step][pair of A]
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int row_group = 2 * half + pair % 2, column_group = 2 * step + pair / 2;  // Of eight.
        const int row = 8 * row_group + g;
        T values[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int k = 8 * column_group + 2 * t + e;
          if (row_group > column_group) {
            values[e] = triangle[RowStart(row) + k];
          } else if (row_group < column_group) {
            values[e] = triangle[RowStart(k) + row];
          } else {
            values[e] = row == k ? FromFloat<T>(0) : triangle[k < row ? RowStart(row) + k : RowStart(k) + row];
          }
        }
        left[half][step][pair] = PairOf(values[0], values[1]);
      }
    }
  }

#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    uint32_t right[2][2][kTiles];  // [step][rows 2t and 2t + 1, 2t + 8 and 2t + 9][tile]
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int below = 0; below < 2; ++below) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          right[step][below][tile] =
              __byte_perm(x[step][2 * below][block].values[tile / 2], x[step][2 * below + 1][block].values[tile / 2],
                          tile % 2 == 0 ? 0x5410 : 0x7632);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (16 * half >= a.vectors) break;
      float sums[kTiles][4] = {};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          Product(T{}, sums[tile], left[half][step], right[step][0][tile], right[step][1][tile]);
        }
      }
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const int vector = 16 * half + 8 * below + g;
        if (vector >= a.vectors) continue;
        // Columns g = 2t of the tiles, then columns g = 2t + 1.
        constexpr int kStores = kTiles == 8 ? 2 : 1;
        constexpr int kStored = 2 * kTiles / kStores;
        float values[2 * kTiles];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          values[tile] = sums[tile][2 * below];
          values[kTiles + tile] = sums[tile][2 * below + 1];
        }
#pragma unroll
        for (int store = 0; store < kStores; ++store) {
          const int at = block * 8 * kTiles + store * 4 * kTiles + t * kStored;
          if (half == 0 && below == 0 && has_bottom && vector == 0) {
            using Values = Pack<T, kStored>;
            const Values bottom = *reinterpret_cast<const Values*>(from.first + at);
            const Values added = *reinterpret_cast<const Values*>(direct + at);
#pragma unroll
            for (int i = 0; i < kStored; ++i) {
              float& value = values[store * kStored + i];
              value += ToFloat(added.values[i]);
              if (a.bottom_relu && ToFloat(bottom.values[i]) <= 0) value = 0;
            }
          }
          Pack<uint32_t, kStored / 2> pairs;
#pragma unroll
          for (int i = 0; i < kStored / 2; ++i) {
            pairs.values[i] = RoundedPair<T>(values[store * kStored + 2 * i], values[store * kStored + 2 * i + 1]);
          }
          Store(to.At(vector, kDim) + at, pairs);
        }
      }
    }
  }
}

}  // namespace mma
}  // namespace sparrow

#endif  // SPARROW_DENSE_INTERACTION_MMA_CUH_
