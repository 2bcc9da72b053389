#ifndef SPARROW_DENSE_LINEAR_KERNELS_CUH_
#define SPARROW_DENSE_LINEAR_KERNELS_CUH_

// What stands before or after a matrix product where an epilogue does not do it: sums of columns, bias and ReLU, ReLU's
// derivative. Each thread handles 16 bytes of a row at a time (a vector).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "base/cuda/launch.cuh"
#include "dense/device_matrix.h"

namespace sparrow {

constexpr int kLinearBlock = 256;

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
template <typename T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 FromFloat(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half FromFloat(float value) {
  return __float2half_rn(value);
}

template <typename T>
struct alignas(16) Vector {
  static constexpr int kWidth = 16 / sizeof(T);
  T elements[kWidth];
};

// Partial sums of columns, and how many blocks have written theirs.
struct ColumnSumsArguments {
  const void* values;  // [rows, stride]
  int64_t rows;
  int64_t cols;
  int64_t stride;
  int stripes;
  int row_blocks;
  int64_t rows_a_block;
  float* partials;     // [row_blocks, stripes * columns of a stripe]; unused for one row block.
  unsigned* finished;  // [stripes], 0 between launches.
  float* sums;         // [cols]
};

// Lanes side by side in a row: 8 vectors are the 128 bytes of a line of the cache.
constexpr int kStripeLanes = 8;
template <typename T>
constexpr int kStripeColumns = kStripeLanes* Vector<T>::kWidth;

// A block sums the rows_a_block rows of its row block over a stripe of 128 bytes of columns: lane l of 8 owns a vector
// of columns, and the 32 threads with that lane take every 32nd row. Their sums are added in a fixed tree. The block of
// a stripe that ends last adds the row blocks' sums in a fixed order, so two runs are bit-equal. Consecutive blocks
// take neighbouring stripes of the same rows. Bytes moved: the matrix, once. Bound by HBM, or by L2 where the matrix
// fits.
template <typename T>
__global__ void __launch_bounds__(kLinearBlock) ColumnSumsKernel(ColumnSumsArguments a) {
  constexpr int kWidth = Vector<T>::kWidth;
  constexpr int kColumns = kStripeColumns<T>;
  constexpr int kWarps = kLinearBlock / 32;
  constexpr int kRowThreads = kLinearBlock / kStripeLanes;
  constexpr int kGroups = kLinearBlock / kColumns;  // Threads for each column when partial sums are added.
  __shared__ float sums[kWarps][kColumns];
  __shared__ bool last;
  static_assert(kGroups <= kWarps);

  const int stripe = static_cast<int>(blockIdx.x) % a.stripes;
  const int row_block = static_cast<int>(blockIdx.x) / a.stripes;
  const int lane = static_cast<int>(threadIdx.x) % kStripeLanes;
  const int64_t column = int64_t{stripe} * kColumns + lane * kWidth;
  float sum[kWidth] = {};
  if (column < a.cols) {
    const T* const from = static_cast<const T*>(a.values) + column;
    const int64_t begin = row_block * a.rows_a_block;
    const int64_t end = min(begin + a.rows_a_block, a.rows);
#pragma unroll 4
    for (int64_t row = begin + threadIdx.x / kStripeLanes; row < end; row += kRowThreads) {
      const Vector<T> vector = *reinterpret_cast<const Vector<T>*>(from + row * a.stride);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] += ToFloat(vector.elements[e]);
    }
  }
  // A warp holds 4 rows: threads l, l + 8, l + 16, l + 24 have the same columns.
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    sum[e] += __shfl_xor_sync(~0u, sum[e], 8);
    sum[e] += __shfl_xor_sync(~0u, sum[e], 16);
  }
  if (threadIdx.x % 32 < kStripeLanes) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sums[threadIdx.x / 32][lane * kWidth + e] = sum[e];
  }
  __syncthreads();

  const int mine = static_cast<int>(threadIdx.x) % kColumns;  // Column within the stripe.
  const int64_t out = int64_t{stripe} * kColumns + mine;
  if (threadIdx.x < kColumns) {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += sums[warp][mine];
    if (a.row_blocks > 1) {
      a.partials[int64_t{row_block} * a.stripes * kColumns + out] = total;
    } else if (out < a.cols) {
      a.sums[out] = total;
    }
  }
  if (a.row_blocks == 1) return;

  __threadfence();  // The sums are seen before they are counted.
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned others = static_cast<unsigned>(a.row_blocks) - 1;
    last = atomicInc(&a.finished[stripe], others) == others;  // Back to 0 at the last.
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  float total = 0;
  for (int i = static_cast<int>(threadIdx.x) / kColumns; i < a.row_blocks; i += kGroups) {
    total += __ldcg(&a.partials[int64_t{i} * a.stripes * kColumns + out]);
  }
  sums[threadIdx.x / kColumns][mine] = total;
  __syncthreads();
  if (threadIdx.x < kColumns && out < a.cols) {
    total = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) total += sums[group][mine];
    a.sums[out] = total;
  }
}

// Stripes in one launch, for which `finished` has a number each.
constexpr int kColumnSumsStripesMax = 4096;

// partials: room for partial_bytes, which holds for at least one row block of a launch.
template <typename T>
void LaunchColumnSums(const DeviceMatrix& values, float* sums, float* partials, size_t partial_bytes,
                      unsigned* finished, const Stream& stream) {
  constexpr int64_t kColumns = kStripeColumns<T>;
  constexpr int64_t kBlocks = 1024;        // 8 for each of 128 multiprocessors, as many as are resident.
  constexpr int64_t kRowsABlockMin = 128;  // 4 vectors a thread: fewer do not hide a read's latency.
  constexpr int64_t kColumnsMax = kColumns * kColumnSumsStripesMax;
  for (int64_t first = 0; first < values.cols; first += kColumnsMax) {
    const int64_t cols = std::min(values.cols - first, kColumnsMax);
    const int64_t stripes = (cols + kColumns - 1) / kColumns;
    const int64_t room = static_cast<int64_t>(partial_bytes / sizeof(float)) / (stripes * kColumns);
    const int64_t blocks_max = std::clamp<int64_t>(kBlocks / stripes, 1, std::max<int64_t>(room, 1));
    const int64_t rows_a_block = std::max((values.rows + blocks_max - 1) / blocks_max, kRowsABlockMin);
    const int64_t row_blocks = std::max<int64_t>((values.rows + rows_a_block - 1) / rows_a_block, 1);
    const ColumnSumsArguments arguments{.values = static_cast<const T*>(values.data) + first,
                                        .rows = values.rows,
                                        .cols = cols,
                                        .stride = values.stride,
                                        .stripes = static_cast<int>(stripes),
                                        .row_blocks = static_cast<int>(row_blocks),
                                        .rows_a_block = rows_a_block,
                                        .partials = partials,
                                        .finished = finished,
                                        .sums = sums + first};
    Launch(ColumnSumsKernel<T>, stripes * row_blocks, kLinearBlock, stream, arguments);
  }
}

struct ReluMask {
  uint8_t* bits;  // [rows, pitch], as ReluMaskBytes describes it.
  int64_t pitch;  // Bytes.
};

struct BiasReluArguments {
  void* y;  // [rows, stride], in place.
  int64_t rows;
  int64_t cols;
  int64_t stride;
  const void* bias;  // [cols], or nullptr.
  bool relu;
  ReluMask mask;  // bits null: not wanted.
};

// One thread for 8 elements of a row and the byte of their bits, consecutive threads side by side. Bytes moved: the
// matrix read and written, an eighth of a byte an element with a mask. Bound by HBM.
template <typename T>
__global__ void __launch_bounds__(kLinearBlock) BiasReluKernel(BiasReluArguments a) {
  constexpr int kWidth = Vector<T>::kWidth;
  const int64_t i = int64_t{blockIdx.x} * kLinearBlock + threadIdx.x;
  const int64_t bytes_a_row = a.cols / 8;
  if (i >= a.rows * bytes_a_row) return;
  const int64_t row = i / bytes_a_row;
  const int64_t byte = i % bytes_a_row;
  T* const y = static_cast<T*>(a.y) + row * a.stride + byte * 8;
  const T* const bias = static_cast<const T*>(a.bias) + byte * 8;
  unsigned bits = 0;
#pragma unroll
  for (int v = 0; v < 8 / kWidth; ++v) {
    Vector<T> vector = reinterpret_cast<const Vector<T>*>(y)[v];
    Vector<T> added = {};
    if (a.bias != nullptr) added = reinterpret_cast<const Vector<T>*>(bias)[v];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      float value = ToFloat(vector.elements[e]) + ToFloat(added.elements[e]);
      if (a.relu && value <= 0) {
        value = 0;  // NaN stays.
      } else {
        bits |= 1u << (v * kWidth + e);
      }
      vector.elements[e] = FromFloat<T>(value);
    }
    reinterpret_cast<Vector<T>*>(y)[v] = vector;
  }
  if (a.mask.bits != nullptr) a.mask.bits[row * a.mask.pitch + byte] = static_cast<uint8_t>(bits);
}

struct ApplyMaskArguments {
  void* values;  // [rows, stride], in place.
  int64_t rows;
  int64_t cols;
  int64_t stride;
  ReluMask mask;
};

// As BiasReluKernel maps threads. What has all its bits is left alone. Bytes moved: the matrix read and written, an
// eighth of a byte an element. Bound by HBM.
template <typename T>
__global__ void __launch_bounds__(kLinearBlock) ApplyMaskKernel(ApplyMaskArguments a) {
  constexpr int kWidth = Vector<T>::kWidth;
  const int64_t i = int64_t{blockIdx.x} * kLinearBlock + threadIdx.x;
  const int64_t bytes_a_row = a.cols / 8;
  if (i >= a.rows * bytes_a_row) return;
  const int64_t row = i / bytes_a_row;
  const int64_t byte = i % bytes_a_row;
  const unsigned bits = a.mask.bits[row * a.mask.pitch + byte];
  if (bits == 0xff) return;
  T* const values = static_cast<T*>(a.values) + row * a.stride + byte * 8;
#pragma unroll
  for (int v = 0; v < 8 / kWidth; ++v) {
    Vector<T> vector = reinterpret_cast<const Vector<T>*>(values)[v];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if ((bits >> (v * kWidth + e) & 1) == 0) vector.elements[e] = FromFloat<T>(0);
    }
    reinterpret_cast<Vector<T>*>(values)[v] = vector;
  }
}

// Blocks of the two kernels above.
inline int64_t BytewiseBlocks(int64_t rows, int64_t cols) {
  return (rows * (cols / 8) + kLinearBlock - 1) / kLinearBlock;
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_LINEAR_KERNELS_CUH_
