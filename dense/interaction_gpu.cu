#include <algorithm>

#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/interaction_gpu.h"
#include "dense/interaction_mma.cuh"
#include "dense/precision.cuh"

namespace sparrow {
namespace {

// ---- Any number of vectors, any dimension, any type: plain arithmetic on tiles in shared memory.

constexpr int kTile = 32;
constexpr int kPitch = kTile + 4;  // Eight rows, four consecutive floats of each, lie in different banks.
constexpr int kThreads = 64;       // Of a block: 8 by 8, of 4 by 4 results each.
constexpr int kBlocksAtATime = 8;  // On a multiprocessor: one loads while others multiply.
using Tile = float[kTile][kPitch];

// tile[r][c] = number column + c of vector first + r, 0 beyond the last ones. Called by all threads; a warp reads 32
// consecutive numbers.
template <typename T>
__device__ void LoadVectors(const typename SampleVectors<const T>::Row& x, int64_t vectors, int64_t dim, int64_t first,
                            int64_t column, Tile& tile) {
  const int c = threadIdx.x % kTile;
#pragma unroll
  for (int i = 0; i < kTile * kTile / kThreads; ++i) {
    const int r = threadIdx.x / kTile + i * (kThreads / kTile);
    tile[r][c] = first + r < vectors && column + c < dim ? ToFloat(x.At(first + r, dim)[column + c]) : 0.0f;
  }
}

// sums[r][c] += the product of rows i + 8 r of left and j + 8 c of right; with kDiagonal, where both are the same
// tile, only those not above the diagonal.
template <bool kDiagonal>
__device__ void AddDots(const Tile& left, const Tile& right, int i, int j, float (&sums)[4][4]) {
#pragma unroll
  for (int k = 0; k < kTile; k += 4) {
    float4 a[4], b[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      a[r] = *reinterpret_cast<const float4*>(&left[i + 8 * r][k]);
      b[r] = *reinterpret_cast<const float4*>(&right[j + 8 * r][k]);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < (kDiagonal ? r + 1 : 4); ++c) {
        sums[r][c] += a[r].x * b[c].x;
        sums[r][c] += a[r].y * b[c].y;
        sums[r][c] += a[r].z * b[c].z;
        sums[r][c] += a[r].w * b[c].w;
      }
    }
  }
}

// A block a sample. It goes through the tiles of 32 by 32 pairs on and below the diagonal and sums over 32 numbers of
// the vectors at a time; a thread has the pairs (i + 8 r, j + 8 c), i = thread / 8, j = thread % 8.
// Bytes moved: V D elements read and `outputs` written a sample, vectors of V > 32 once for each tile they are in. In
// float, at V = 27 and D = 128, bound by HBM and by arithmetic about alike (40,960 multiply-adds and 15.7 KB a sample);
// with 16-bit elements by arithmetic.
template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocksAtATime)
    InteractionForwardAnyKernel(SampleVectors<const T> x, int64_t vectors, int64_t outputs, int64_t padded, T* out_data,
                                int64_t out_stride) {
  __shared__ alignas(16) Tile left, right;
  const int64_t sample = blockIdx.x;
  const typename SampleVectors<const T>::Row from = x.Of(sample);
  T* const out = out_data + sample * out_stride;
  const int64_t direct = x.bottom != nullptr ? x.dim : 0;
  for (int64_t d = threadIdx.x; d < direct; d += kThreads) out[d] = from.first[d];
  for (int64_t c = outputs + threadIdx.x; c < padded; c += kThreads) out[c] = FromFloat<T>(0);

  const int i = threadIdx.x / 8, j = threadIdx.x % 8;
  for (int64_t row = 0; row < vectors; row += kTile) {
    for (int64_t column = 0; column <= row; column += kTile) {
      float sums[4][4] = {};
      for (int64_t d = 0; d < x.dim; d += kTile) {
        __syncthreads();  // The tiles have been used.
        LoadVectors<T>(from, vectors, x.dim, row, d, left);
        if (column != row) LoadVectors<T>(from, vectors, x.dim, column, d, right);
        __syncthreads();
        if (column == row) {
          AddDots<true>(left, left, i, j, sums);
        } else {
          AddDots<false>(left, right, i, j, sums);
        }
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int64_t a = row + i + 8 * r, b = column + j + 8 * c;
          if (a < vectors && b < a) out[direct + a * (a - 1) / 2 + b] = FromFloat<T>(sums[r][c]);
        }
      }
    }
  }
}

// A block a sample, tiles of 32 vectors by 32 columns of the gradients; a thread has vectors 4 i + r and columns
// j + 8 c, i = thread / 8, j = thread % 8. The symmetric matrix of the products' gradients is spread out tile by tile,
// once a sample for at most 32 vectors.
// Bytes moved: V D elements and the outputs' read, V D elements written a sample; bound as the forward kernel.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    InteractionBackwardAnyKernel(SampleVectors<const T> x, int64_t vectors, const T* out_gradients, int64_t out_stride,
                                 bool bottom_relu, SampleVectors<T> gradients) {
  __shared__ alignas(16) Tile products, numbers;  // [k][vector], [k][column]
  const int64_t sample = blockIdx.x;
  const typename SampleVectors<const T>::Row from = x.Of(sample);
  const typename SampleVectors<T>::Row to = gradients.Of(sample);
  const T* const direct = out_gradients + sample * out_stride;
  const T* const triangle = direct + (x.bottom != nullptr ? x.dim : 0);
  const int i = threadIdx.x / 8, j = threadIdx.x % 8;
  for (int64_t first = 0; first < vectors; first += kTile) {
    for (int64_t d = 0; d < x.dim; d += kTile) {
      float sums[4][4] = {};
      for (int64_t k0 = 0; k0 < vectors; k0 += kTile) {
        __syncthreads();  // The tiles have been used.
        if (vectors > kTile || d == 0) {
          const int64_t vector = first + threadIdx.x % kTile;
          for (int r = threadIdx.x / kTile; r < kTile; r += kThreads / kTile) {
            const int64_t k = k0 + r;
            const int64_t high = max(k, vector), low = min(k, vector);
            products[r][threadIdx.x % kTile] =
                high < vectors && high != low ? ToFloat(triangle[high * (high - 1) / 2 + low]) : 0.0f;
          }
        }
        LoadVectors<T>(from, vectors, x.dim, k0, d, numbers);
        __syncthreads();
        const int end = static_cast<int>(min(int64_t{kTile}, vectors - k0));
        for (int k = 0; k < end; ++k) {
          const float4 a = *reinterpret_cast<const float4*>(&products[k][4 * i]);
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float b = numbers[k][j + 8 * c];
            sums[0][c] += a.x * b;
            sums[1][c] += a.y * b;
            sums[2][c] += a.z * b;
            sums[3][c] += a.w * b;
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int64_t vector = first + 4 * i + r;
        if (vector >= vectors) continue;
        const bool is_bottom = x.bottom != nullptr && vector == 0;
        T* const row = to.At(vector, x.dim);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int64_t column = d + j + 8 * c;
          if (column >= x.dim) continue;
          float sum = sums[r][c];
          if (is_bottom) {
            sum += ToFloat(direct[column]);
            if (bottom_relu && ToFloat(from.first[column]) <= 0) sum = 0;
          }
          row[column] = FromFloat<T>(sum);
        }
      }
    }
  }
}

constexpr int kGatherBlock = 256;

// A warp a vector, lane l its numbers l, l + 32, ... Bytes moved: D 4 and a slot of 4 read, D elements written for each
// vector. Bound by HBM.
template <typename T>
__global__ void __launch_bounds__(kGatherBlock) GatherKernel(GatheredVectors gathered, int64_t rows, int64_t features,
                                                             int64_t dim, T* sparse, int64_t sparse_stride) {
  const int64_t vector = (int64_t{blockIdx.x} * kGatherBlock + threadIdx.x) / 32;
  if (vector >= rows * features) return;
  const int64_t sample = vector / features, feature = vector % features;
  const size_t slot = gathered.slots[feature * rows + sample];
  const float* const from = reinterpret_cast<const float*>(gathered.records + slot * gathered.slot_bytes);
  T* const to = sparse + sample * sparse_stride + feature * dim;
  for (int64_t d = threadIdx.x % 32; d < dim; d += 32) to[d] = FromFloat<T>(from[d]);
}

// ---- The choice.

template <typename T>
SampleVectors<T> VectorsOf(const InteractionShape& shape, const DeviceMatrix& bottom, const DeviceMatrix& sparse) {
  const bool has_bottom = shape.bottom_cols > 0;
  return {has_bottom ? static_cast<T*>(bottom.data) : nullptr, bottom.stride, static_cast<T*>(sparse.data),
          sparse.stride, shape.dim};
}

void CheckShapes(const InteractionShape& shape, const DeviceMatrix& bottom, const DeviceMatrix& sparse,
                 const DeviceMatrix& out) {
  CHECK(shape.bottom_cols == 0 || shape.bottom_cols == shape.dim);
  CHECK(sparse.cols == shape.features * shape.dim && out.cols == shape.outputs() && sparse.rows == out.rows);
  CHECK(shape.bottom_cols == 0 ||
        (bottom.data != nullptr && bottom.cols == shape.bottom_cols && bottom.rows == out.rows) || out.rows == 0);
  CHECK_GE(out.stride, PaddedColumns(shape.outputs()));
}

bool FitsTensorCores(const InteractionShape& shape, Precision precision) {
  return ElementBytes(precision) == 2 &&
         (shape.dim == 16 || shape.dim == 32 || shape.dim == 64 || shape.dim == mma::kDimMax) &&
         shape.vectors() <= mma::kVectorsMax;
}

// Whether matrices of T go through tensor cores.
template <typename T>
bool FitsTensorCores(const InteractionShape& shape, Precision precision, const DeviceMatrix& bottom,
                     const DeviceMatrix& sparse, const DeviceMatrix& out) {
  return FitsTensorCores(shape, precision) && (shape.bottom_cols == 0 || HasAlignedRows<T>(bottom)) &&
         HasAlignedRows<T>(sparse) && HasAlignedRows<T>(out);
}

int64_t MmaBlocks(int64_t rows) { return (rows + mma::kWarps - 1) / mma::kWarps; }

template <typename T, bool kGather>
void LaunchForward(const mma::ForwardArguments<T>& a, const Stream& stream) {
  if constexpr (sizeof(T) == 2) {
    const int64_t grid = MmaBlocks(a.rows);
    switch (a.x.dim) {
      case 16:
        return LaunchEarly(mma::InteractionForwardKernel<T, 16, kGather>, grid, mma::kBlock, stream, a);
      case 32:
        return LaunchEarly(mma::InteractionForwardKernel<T, 32, kGather>, grid, mma::kBlock, stream, a);
      case 64:
        return LaunchEarly(mma::InteractionForwardKernel<T, 64, kGather>, grid, mma::kBlock, stream, a);
      default:
        return LaunchEarly(mma::InteractionForwardKernel<T, 128, kGather>, grid, mma::kBlock, stream, a);
    }
  }
}

template <typename T>
void LaunchBackward(const mma::BackwardArguments<T>& a, const Stream& stream) {
  if constexpr (sizeof(T) == 2) {
    const int64_t grid = MmaBlocks(a.rows);
    switch (a.x.dim) {
      case 16:
        return LaunchEarly(mma::InteractionBackwardKernel<T, 16>, grid, mma::kBlock, stream, a);
      case 32:
        return LaunchEarly(mma::InteractionBackwardKernel<T, 32>, grid, mma::kBlock, stream, a);
      case 64:
        return LaunchEarly(mma::InteractionBackwardKernel<T, 64>, grid, mma::kBlock, stream, a);
      default:
        return LaunchEarly(mma::InteractionBackwardKernel<T, 128>, grid, mma::kBlock, stream, a);
    }
  }
}

// vectors: how often they are moved. products: of V by V with V by D, but for the halves above the diagonal.
OperationCost CostOf(const char* name, const InteractionShape& shape, Precision precision, int64_t rows, int vectors,
                     int products) {
  const double numbers = static_cast<double>(shape.vectors() * shape.dim);
  const double outputs = static_cast<double>(PaddedColumns(shape.outputs()));
  return {.name = name,
          .bytes = static_cast<double>(ElementBytes(precision) * rows) * (vectors * numbers + outputs),
          .flops = static_cast<double>(products * rows * (shape.vectors() - 1)) * numbers};
}

template <typename T>
mma::ForwardArguments<T> ForwardArgumentsOf(const InteractionShape& shape, const DeviceMatrix& bottom,
                                            const GatheredVectors& gathered, const DeviceMatrix& sparse,
                                            VectorsReady ready, const DeviceMatrix& out) {
  return {.x = VectorsOf<const T>(shape, bottom, sparse),
          .gathered = gathered,
          .sparse = static_cast<T*>(sparse.data),
          .sparse_stride = sparse.stride,
          .out = static_cast<T*>(out.data),
          .out_stride = out.stride,
          .rows = out.rows,
          .vectors = static_cast<int>(shape.vectors()),
          .outputs = static_cast<int>(shape.outputs()),
          .padded = static_cast<int>(PaddedColumns(shape.outputs())),
          .vectors_ready = ready == VectorsReady::kYes};
}

}  // namespace

void InteractionForwardGpu(const InteractionShape& shape, Precision precision, const DeviceMatrix& bottom,
                           const DeviceMatrix& sparse, VectorsReady ready, const DeviceMatrix& out,
                           const Stream& stream) {
  CheckShapes(shape, bottom, sparse, out);
  const Operation operation([&] { return CostOf("interaction forward", shape, precision, out.rows, 1, 1); });
  WithElementType(precision, [&]<typename T>(T) {
    if (FitsTensorCores<T>(shape, precision, bottom, sparse, out)) {
      return LaunchForward<T, false>(ForwardArgumentsOf<T>(shape, bottom, {}, sparse, ready, out), stream);
    }
    Launch(InteractionForwardAnyKernel<T>, out.rows, kThreads, stream, VectorsOf<const T>(shape, bottom, sparse),
           shape.vectors(), shape.outputs(), PaddedColumns(shape.outputs()), static_cast<T*>(out.data), out.stride);
  });
}

void InteractionBackwardGpu(const InteractionShape& shape, Precision precision, const DeviceMatrix& bottom,
                            const DeviceMatrix& sparse, VectorsReady ready, const DeviceMatrix& out_gradients,
                            bool bottom_relu, const DeviceMatrix& bottom_gradients,
                            const DeviceMatrix& sparse_gradients, const Stream& stream) {
  CheckShapes(shape, bottom, sparse, out_gradients);
  CheckShapes(shape, bottom_gradients, sparse_gradients, out_gradients);
  const Operation operation([&] { return CostOf("interaction backward", shape, precision, out_gradients.rows, 2, 2); });
  WithElementType(precision, [&]<typename T>(T) {
    const auto x = VectorsOf<const T>(shape, bottom, sparse);
    const auto gradients = VectorsOf<T>(shape, bottom_gradients, sparse_gradients);
    const T* const out = static_cast<const T*>(out_gradients.data);
    if (FitsTensorCores<T>(shape, precision, bottom, sparse, out_gradients) &&
        FitsTensorCores<T>(shape, precision, bottom_gradients, sparse_gradients, out_gradients)) {
      return LaunchBackward<T>({.x = x,
                                .out_gradients = out,
                                .out_stride = out_gradients.stride,
                                .gradients = gradients,
                                .rows = out_gradients.rows,
                                .vectors = static_cast<int>(shape.vectors()),
                                .outputs = static_cast<int>(shape.outputs()),
                                .padded = static_cast<int>(PaddedColumns(shape.outputs())),
                                .bottom_relu = bottom_relu,
                                .vectors_ready = ready == VectorsReady::kYes},
                               stream);
    }
    Launch(InteractionBackwardAnyKernel<T>, out_gradients.rows, kThreads, stream, x, shape.vectors(), out,
           out_gradients.stride, bottom_relu, gradients);
  });
}

bool InteractionGathersItself(const InteractionShape& shape, Precision precision) {
  return FitsTensorCores(shape, precision);
}

void InteractionForwardGatheredGpu(const InteractionShape& shape, Precision precision, const DeviceMatrix& bottom,
                                   const GatheredVectors& vectors, const DeviceMatrix& sparse, VectorsReady ready,
                                   const DeviceMatrix& out, const Stream& stream) {
  CheckShapes(shape, bottom, sparse, out);
  CHECK(IsAligned16(vectors.records) && vectors.slot_bytes % 16 == 0);
  WithElementType(precision, [&]<typename T>(T) {
    const double vectors_read = 1.0 * out.rows * shape.features * (4 * shape.dim + 4);
    if (FitsTensorCores<T>(shape, precision, bottom, sparse, out)) {
      const Operation operation([&] {
        OperationCost cost = CostOf("interaction forward, gathered", shape, precision, out.rows, 1, 1);
        cost.bytes += vectors_read;  // In place of those that are written.
        return cost;
      });
      return LaunchForward<T, true>(ForwardArgumentsOf<T>(shape, bottom, vectors, sparse, ready, out), stream);
    }
    const int64_t threads = 32 * out.rows * shape.features;
    const Operation operation([&] {
      return OperationCost{.name = "gather", .bytes = vectors_read + 1.0 * sizeof(T) * out.rows * sparse.cols};
    });
    Launch(GatherKernel<T>, (threads + kGatherBlock - 1) / kGatherBlock, kGatherBlock, stream, vectors, out.rows,
           shape.features, shape.dim, static_cast<T*>(sparse.data), sparse.stride);
    InteractionForwardGpu(shape, precision, bottom, sparse, VectorsReady::kNo, out, stream);
  });
}

}  // namespace sparrow
