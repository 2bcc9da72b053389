#ifndef SPARROW_DENSE_ATTENTION_ANY_CUH_
#define SPARROW_DENSE_ATTENTION_ANY_CUH_

// Attention of any head width in any type: plain arithmetic in float32 on tiles in shared memory. The matrices of
// results are cut into chunks of columns, for each of which the weights are computed anew.

#include <cstdint>

#include "dense/attention_gpu.h"
#include "dense/precision.cuh"

namespace sparrow::attention_any {

constexpr int kTile = 32;      // Rows (queries or keys) of a block, and of what they meet at a time.
constexpr int kThreads = 256;  // A thread has row thread / 8 of the block's, and of every 8 columns thread % 8.
constexpr int kChunk = 128;    // Columns of results at a time.
using Tile = float[kTile][kTile + 1];
using Chunk = float[kTile][kChunk];

// Rows of one head of one sequence, in a wider matrix.
template <typename T>
struct HeadRows {
  T* data;
  int64_t stride;
  __device__ T* Row(int64_t row) const { return data + row * stride; }
};

template <typename T>
struct Arguments {
  int64_t length;
  int64_t heads;
  int64_t head_width;
  int64_t blocks_of_head;
  float scale;
  AttentionDropoutGpu dropout;
  const T* qkv;
  int64_t qkv_stride;
  T* y;  // Backward only reads it.
  int64_t y_stride;
  float* log_sums;  // [sequences, heads, length]; backward only reads it.
  const T* y_gradients;
  int64_t y_gradients_stride;
  T* qkv_gradients;
  int64_t qkv_gradients_stride;
  float* means;  // [sequences, heads, length]: y . dy
};

// Where a block works.
template <typename T>
struct Place {
  int64_t number, sequence, head, first;
  __device__ explicit Place(const Arguments<T>& a)
      : number(blockIdx.x / a.blocks_of_head),
        sequence(number / a.heads),
        head(number % a.heads),
        first(blockIdx.x % a.blocks_of_head * kTile) {}
  // Queries, keys or values (part 0, 1 or 2) of qkv or of its gradients.
  template <typename Element>
  __device__ HeadRows<Element> Part(const Arguments<T>& a, Element* data, int64_t stride, int64_t part) const {
    return {data + sequence * a.length * stride + (part * a.heads + head) * a.head_width, stride};
  }
  __device__ HeadDropout DropoutOf(const Arguments<T>& a) const {
    return a.dropout.place == nullptr ? HeadDropout() : a.dropout.Of(sequence, a.heads, head);
  }
};

// The factor of weight (query, key).
__device__ inline float FactorOf(const HeadDropout& dropout, int64_t query, int64_t key) {
  return dropout.enabled() ? dropout.Factor(static_cast<uint32_t>(query), static_cast<uint32_t>(key)) : 1.0f;
}

// dots[k] = row left_first + i of left by row right_first + j + 8 k of right; rows from `length` on are 0.
template <typename T>
__device__ void Dots(const HeadRows<const T>& left, int64_t left_first, const HeadRows<const T>& right,
                     int64_t right_first, int64_t length, int64_t width, Tile& left_tile, Tile& right_tile,
                     float (&dots)[4]) {
  const int i = threadIdx.x / 8, j = threadIdx.x % 8, c = threadIdx.x % kTile;
#pragma unroll
  for (int k = 0; k < 4; ++k) dots[k] = 0;
  for (int64_t d = 0; d < width; d += kTile) {
    __syncthreads();  // The tiles have been used.
    for (int r = threadIdx.x / kTile; r < kTile; r += kThreads / kTile) {
      const bool inside = d + c < width;
      left_tile[r][c] = inside && left_first + r < length ? ToFloat(left.Row(left_first + r)[d + c]) : 0.0f;
      right_tile[r][c] = inside && right_first + r < length ? ToFloat(right.Row(right_first + r)[d + c]) : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int e = 0; e < kTile; ++e) {
      const float factor = left_tile[i][e];
#pragma unroll
      for (int k = 0; k < 4; ++k) dots[k] += factor * right_tile[j + 8 * k][e];
    }
  }
}

// sums[k] += weights[i] by column chunk + j + 8 k of the rows from `first` on.
template <typename T>
__device__ void AddWeighted(const Tile& weights, const HeadRows<const T>& rows, int64_t first, int64_t length,
                            int64_t chunk, int64_t width, Chunk& values, float (&sums)[kChunk / 8]) {
  const int i = threadIdx.x / 8, j = threadIdx.x % 8;
  __syncthreads();  // The values have been used, and the weights are there.
  for (int at = threadIdx.x; at < kTile * kChunk; at += kThreads) {
    const int r = at / kChunk, c = at % kChunk;
    values[r][c] = first + r < length && chunk + c < width ? ToFloat(rows.Row(first + r)[chunk + c]) : 0.0f;
  }
  __syncthreads();
  for (int u = 0; u < kTile; ++u) {
    const float weight = weights[i][u];
#pragma unroll
    for (int k = 0; k < kChunk / 8; ++k) sums[k] += weight * values[u][j + 8 * k];
  }
}

// Of the eight threads that have a row.
__device__ inline float SumOfRow(float x) {
  for (int step = 1; step < 8; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Writes a chunk of the block's rows.
template <typename T>
__device__ void WriteChunk(const float (&sums)[kChunk / 8], float factor, const HeadRows<T>& to, int64_t row,
                           int64_t length, int64_t chunk, int64_t width) {
  if (row >= length) return;
#pragma unroll
  for (int k = 0; k < kChunk / 8; ++k) {
    const int64_t column = chunk + threadIdx.x % 8 + 8 * k;
    if (column < width) to.Row(row)[column] = FromFloat<T>(sums[k] * factor);
  }
}

// A block has 32 queries of a head. Bytes moved: qkv and y once, keys and values once more, from L2, for each block of
// a head. Bound by arithmetic: head_width multiply-adds a weight, twice, at a few a cycle and thread.
template <typename T>
__global__ void __launch_bounds__(kThreads) AttentionForwardAnyKernel(const Arguments<T> a) {
  __shared__ Tile left, right, weights;
  __shared__ Chunk values;
  const Place<T> at(a);
  const HeadRows<const T> q = at.Part(a, a.qkv, a.qkv_stride, 0), k = at.Part(a, a.qkv, a.qkv_stride, 1);
  const HeadRows<const T> v = at.Part(a, a.qkv, a.qkv_stride, 2);
  const HeadDropout dropout = at.DropoutOf(a);
  const int i = threadIdx.x / 8, j = threadIdx.x % 8;
  const int64_t query = at.first + i;
  for (int64_t chunk = 0; chunk < a.head_width; chunk += kChunk) {
    float sums[kChunk / 8] = {};
    float greatest = -INFINITY, total = 0;
    for (int64_t first = 0; first <= at.first; first += kTile) {
      float scores[4];
      Dots<T>(q, at.first, k, first, a.length, a.head_width, left, right, scores);
      float most = greatest;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t key = first + j + 8 * e;
        scores[e] = key <= query ? scores[e] * a.scale : -INFINITY;
        most = fmaxf(most, scores[e]);
      }
      for (int step = 1; step < 8; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      const float factor = expf(greatest - most);
      greatest = most;
      total *= factor;
#pragma unroll
      for (int e = 0; e < kChunk / 8; ++e) sums[e] *= factor;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float weight = expf(scores[e] - greatest);
        total += weight;
        weights[i][j + 8 * e] = weight * FactorOf(dropout, query, first + j + 8 * e);
      }
      AddWeighted<T>(weights, v, first, a.length, chunk, a.head_width, values, sums);
    }
    total = SumOfRow(total);
    if (chunk == 0 && j == 0 && query < a.length) a.log_sums[at.number * a.length + query] = greatest + logf(total);
    WriteChunk<T>(sums, 1 / total, at.Part(a, a.y, a.y_stride, 0), query, a.length, chunk, a.head_width);
  }
}

// The gradient of a score, from the score and the gradient of its weight. *weight is then that which values meet.
__device__ inline float ScoreGradient(float score, float gradient, float log_sum, float mean, float factor,
                                      float* weight) {
  const float kept = expf(score - log_sum);
  *weight = kept * factor;
  return kept * (gradient * factor - mean);
}

// A block has 32 queries of a head, as in the forward kernel. It writes its rows' means, which the other kernel reads.
// Bound by arithmetic as the forward kernel: three products.
template <typename T>
__global__ void __launch_bounds__(kThreads) AttentionQueryGradientsAnyKernel(const Arguments<T> a) {
  __shared__ Tile left, right, weights;
  __shared__ Chunk values;
  const Place<T> at(a);
  const HeadRows<const T> q = at.Part(a, a.qkv, a.qkv_stride, 0), k = at.Part(a, a.qkv, a.qkv_stride, 1);
  const HeadRows<const T> v = at.Part(a, a.qkv, a.qkv_stride, 2),
                          g = at.Part(a, a.y_gradients, a.y_gradients_stride, 0);
  const HeadRows<T> y = at.Part(a, a.y, a.y_stride, 0);
  const HeadDropout dropout = at.DropoutOf(a);
  const int i = threadIdx.x / 8, j = threadIdx.x % 8;
  const int64_t query = at.first + i;
  const bool exists = query < a.length;
  float mean = 0;
  if (exists) {
    for (int64_t c = j; c < a.head_width; c += 8) mean += ToFloat(y.Row(query)[c]) * ToFloat(g.Row(query)[c]);
  }
  mean = SumOfRow(mean);
  const float log_sum = exists ? a.log_sums[at.number * a.length + query] : INFINITY;
  if (exists && j == 0) a.means[at.number * a.length + query] = mean;
  for (int64_t chunk = 0; chunk < a.head_width; chunk += kChunk) {
    float sums[kChunk / 8] = {};
    for (int64_t first = 0; first <= at.first; first += kTile) {
      float scores[4], gradients[4];
      Dots<T>(q, at.first, k, first, a.length, a.head_width, left, right, scores);
      Dots<T>(g, at.first, v, first, a.length, a.head_width, left, right, gradients);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t key = first + j + 8 * e;
        const float score = key <= query ? scores[e] * a.scale : -INFINITY;
        float weight;
        weights[i][j + 8 * e] =
            ScoreGradient(score, gradients[e], log_sum, mean, FactorOf(dropout, query, key), &weight);
      }
      AddWeighted<T>(weights, k, first, a.length, chunk, a.head_width, values, sums);
    }
    WriteChunk<T>(sums, a.scale, at.Part(a, a.qkv_gradients, a.qkv_gradients_stride, 0), query, a.length, chunk,
                  a.head_width);
  }
}

// A block has 32 keys of a head. Bound by arithmetic as the forward kernel: four products.
template <typename T>
__global__ void __launch_bounds__(kThreads) AttentionKeyGradientsAnyKernel(const Arguments<T> a) {
  __shared__ Tile left, right, weights, score_gradients;
  __shared__ Chunk values;
  const Place<T> at(a);
  const HeadRows<const T> q = at.Part(a, a.qkv, a.qkv_stride, 0), k = at.Part(a, a.qkv, a.qkv_stride, 1);
  const HeadRows<const T> v = at.Part(a, a.qkv, a.qkv_stride, 2),
                          g = at.Part(a, a.y_gradients, a.y_gradients_stride, 0);
  const HeadDropout dropout = at.DropoutOf(a);
  const int i = threadIdx.x / 8, j = threadIdx.x % 8;
  const int64_t key = at.first + i;
  for (int64_t chunk = 0; chunk < a.head_width; chunk += kChunk) {
    float key_sums[kChunk / 8] = {}, value_sums[kChunk / 8] = {};
    for (int64_t first = at.first; first < a.length; first += kTile) {
      float scores[4], gradients[4];
      Dots<T>(k, at.first, q, first, a.length, a.head_width, left, right, scores);
      Dots<T>(v, at.first, g, first, a.length, a.head_width, left, right, gradients);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t query = first + j + 8 * e;
        float weight = 0, score_gradient = 0;
        if (key <= query && query < a.length) {
          const int64_t row = at.number * a.length + query;
          score_gradient = ScoreGradient(scores[e] * a.scale, gradients[e], a.log_sums[row], a.means[row],
                                         FactorOf(dropout, query, key), &weight);
        }
        weights[i][j + 8 * e] = weight;
        score_gradients[i][j + 8 * e] = score_gradient;
      }
      AddWeighted<T>(weights, g, first, a.length, chunk, a.head_width, values, value_sums);
      AddWeighted<T>(score_gradients, q, first, a.length, chunk, a.head_width, values, key_sums);
    }
    WriteChunk<T>(key_sums, a.scale, at.Part(a, a.qkv_gradients, a.qkv_gradients_stride, 1), key, a.length, chunk,
                  a.head_width);
    WriteChunk<T>(value_sums, 1, at.Part(a, a.qkv_gradients, a.qkv_gradients_stride, 2), key, a.length, chunk,
                  a.head_width);
  }
}

}  // namespace sparrow::attention_any

#endif  // SPARROW_DENSE_ATTENTION_ANY_CUH_
