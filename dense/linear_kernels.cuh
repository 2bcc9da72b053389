#ifndef SPARROW_DENSE_LINEAR_KERNELS_CUH_
#define SPARROW_DENSE_LINEAR_KERNELS_CUH_

// What follows a matrix product where an epilogue does not do it, or slower: bias and ReLU, ReLU's derivative, sums of
// columns. Each thread handles 16 bytes of a row at a time (a vector).

#include <algorithm>
#include <cstdint>

#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/device_matrix.h"
#include "dense/precision.cuh"

namespace sparrow {

constexpr int kLinearBlock = 256;

template <typename T>
struct alignas(16) Vector {
  static constexpr int kWidth = 16 / sizeof(T);
  T elements[kWidth];
};

// Where a gradient passes a ReLU: where a mask of ReluMaskBytes has a bit, or where its output is not <= 0, as
// BiasActivationBackwardCpu has it.
enum class ReluFrom { kNowhere, kMask, kOutputs };  // kNowhere: there is none.

struct GradientsArguments {
  void* values;  // [rows, stride], in place.
  int64_t rows;
  int64_t cols;
  int64_t stride;
  const uint8_t* mask;  // [rows, mask_pitch]
  int64_t mask_pitch;   // Bytes.
  const void* outputs;  // [rows, outputs_stride]
  int64_t outputs_stride;
  int stripes;
  int row_blocks;
  int64_t rows_a_block;
  float* partials;     // [row_blocks, stripes * columns of a stripe]; unused for one row block.
  unsigned* finished;  // [stripes], 0 between launches.
  float* sums;         // [cols]
  bool add;            // The sums are added to what is there.
};

// Lanes side by side in a row: 8 vectors are the 128 bytes of a line of the cache.
constexpr int kStripeLanes = 8;
template <typename T>
constexpr int kStripeColumns = kStripeLanes* Vector<T>::kWidth;

// Resident blocks of a multiprocessor, so many that their reads in flight hide a read's latency.
constexpr int GradientsBlocks(ReluFrom relu) { return relu == ReluFrom::kNowhere ? 4 : 3; }

// Gradients through a ReLU, in place, and the sums of their columns, or one of the two. A block takes the rows_a_block
// rows of its row block over a stripe of 128 bytes of columns: lane l of 8 owns a vector of columns, and the 32 threads
// with that lane take every 32nd row, two or four at a time. Their sums are added in a fixed tree. The block of a
// stripe that ends last adds the row blocks' sums in a fixed order, so two runs are bit-equal. Consecutive blocks take
// neighbouring stripes of the same rows. Bytes moved: the matrix read, with a ReLU written too, and an eighth of a byte
// an element of a mask or the outputs read. Bound by HBM, or by L2 where the matrices fit.
template <typename T, ReluFrom kRelu, bool kSums>
__global__ void __launch_bounds__(kLinearBlock, GradientsBlocks(kRelu)) GradientsKernel(GradientsArguments a) {
  constexpr int kWidth = Vector<T>::kWidth;
  constexpr int kColumns = kStripeColumns<T>;
  constexpr int kWarps = kLinearBlock / 32;
  constexpr int kRowThreads = kLinearBlock / kStripeLanes;
  constexpr int kAtATime = kRelu == ReluFrom::kOutputs ? 2 : 4;  // Rows of a thread whose reads are in flight.

  const int stripe = static_cast<int>(blockIdx.x) % a.stripes;
  const int row_block = static_cast<int>(blockIdx.x) / a.stripes;
  const int lane = static_cast<int>(threadIdx.x) % kStripeLanes;
  const int64_t column = int64_t{stripe} * kColumns + lane * kWidth;
  float sum[kWidth] = {};
  if (column < a.cols) {
    T* const values = static_cast<T*>(a.values) + column;
    const int64_t end = min((row_block + 1) * a.rows_a_block, a.rows);
    int64_t row = row_block * a.rows_a_block + threadIdx.x / kStripeLanes;
    for (; row < end; row += kAtATime * kRowThreads) {
      Vector<T> vectors[kAtATime];
      Vector<T> outputs[kAtATime];
      unsigned bits[kAtATime];
#pragma unroll
      for (int i = 0; i < kAtATime; ++i) {
        const int64_t r = row + i * kRowThreads;
        vectors[i] = {};
        if (r >= end) continue;
        vectors[i] = *reinterpret_cast<const Vector<T>*>(values + r * a.stride);
        if (kRelu == ReluFrom::kMask) bits[i] = a.mask[r * a.mask_pitch + column / 8] >> (column % 8);
        if (kRelu == ReluFrom::kOutputs) {
          const T* const from = static_cast<const T*>(a.outputs) + column;
          outputs[i] = *reinterpret_cast<const Vector<T>*>(from + r * a.outputs_stride);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtATime; ++i) {
        const int64_t r = row + i * kRowThreads;
        if (kRelu != ReluFrom::kNowhere && r < end) {
#pragma unroll
          for (int e = 0; e < kWidth; ++e) {
            const bool passes = kRelu == ReluFrom::kMask ? (bits[i] >> e & 1) != 0  // NaN passes.
                                                         : !(ToFloat(outputs[i].elements[e]) <= 0);
            if (!passes) vectors[i].elements[e] = FromFloat<T>(0);
          }
          *reinterpret_cast<Vector<T>*>(values + r * a.stride) = vectors[i];
        }
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum[e] += ToFloat(vectors[i].elements[e]);
      }
    }
  }
  if (!kSums) return;

  constexpr int kFours = kColumns / 4;            // When partial sums are added: threads side by side,
  constexpr int kGroups = kLinearBlock / kFours;  // and threads with the same columns.
  static_assert(kGroups >= kWarps);
  __shared__ alignas(16) float sums[kGroups][kColumns];
  __shared__ bool last;
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
  const int64_t pitch = int64_t{a.stripes} * kColumns;  // Of partial sums.
  if (threadIdx.x < kColumns) {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += sums[warp][mine];
    if (a.row_blocks > 1) {
      a.partials[row_block * pitch + out] = total;
    } else if (out < a.cols) {
      a.sums[out] = a.add ? a.sums[out] + total : total;
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
  const int four = static_cast<int>(threadIdx.x) % kFours;
  const int group = static_cast<int>(threadIdx.x) / kFours;
  float4 total = {0, 0, 0, 0};
#pragma unroll 8
  for (int i = group; i < a.row_blocks; i += kGroups) {
    const float* const from = a.partials + i * pitch + int64_t{stripe} * kColumns + 4 * four;
    const float4 part = __ldcg(reinterpret_cast<const float4*>(from));
    total.x += part.x;
    total.y += part.y;
    total.z += part.z;
    total.w += part.w;
  }
  *reinterpret_cast<float4*>(&sums[group][4 * four]) = total;
  __syncthreads();
  if (threadIdx.x < kColumns && out < a.cols) {
    float all = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) all += sums[g][mine];
    a.sums[out] = a.add ? a.sums[out] + all : all;
  }
}

// Room for the sums of row blocks, and for the count of finished ones.
struct SumsRoom {
  static constexpr int kStripesMax = 4096;  // In one launch.
  float* partials;                          // partials_max floats, at least a row block of kStripesMax.
  int64_t partials_max;
  unsigned* finished;  // [kStripesMax], 0.
};

// sums null: not wanted.
template <typename T, ReluFrom kRelu>
void LaunchGradients(const DeviceMatrix& values, const uint8_t* mask, int64_t mask_pitch, const DeviceMatrix& outputs,
                     float* sums, bool add, const SumsRoom& room, const Stream& stream) {
  constexpr int64_t kColumns = kStripeColumns<T>;
  // All resident at once on 132 multiprocessors: a block that ends and one that starts leave a gap in the reads. The
  // same on every GPU, for the same sums.
  constexpr int64_t kBlocks = 132 * GradientsBlocks(kRelu);
  constexpr int64_t kRowBlocksMax = 256;   // Their sums are added by one block: 16 reads a thread.
  constexpr int64_t kRowsABlockMin = 128;  // 4 vectors a thread.
  constexpr int64_t kColumnsMax = kColumns * SumsRoom::kStripesMax;
  for (int64_t first = 0; first < values.cols; first += kColumnsMax) {
    const int64_t cols = std::min(values.cols - first, kColumnsMax);
    const int64_t stripes = (cols + kColumns - 1) / kColumns;
    const int64_t blocks_max =
        std::max<int64_t>(std::min({kBlocks / stripes, kRowBlocksMax, room.partials_max / (stripes * kColumns)}), 1);
    const int64_t rows_a_block = std::max((values.rows + blocks_max - 1) / blocks_max, kRowsABlockMin);
    const int64_t row_blocks = std::max<int64_t>((values.rows + rows_a_block - 1) / rows_a_block, 1);
    const GradientsArguments arguments{
        .values = static_cast<T*>(values.data) + first,
        .rows = values.rows,
        .cols = cols,
        .stride = values.stride,
        .mask = kRelu == ReluFrom::kMask ? mask + first / 8 : nullptr,
        .mask_pitch = mask_pitch,
        .outputs = kRelu == ReluFrom::kOutputs ? static_cast<const T*>(outputs.data) + first : nullptr,
        .outputs_stride = outputs.stride,
        .stripes = static_cast<int>(stripes),
        .row_blocks = static_cast<int>(row_blocks),
        .rows_a_block = rows_a_block,
        .partials = room.partials,
        .finished = room.finished,
        .sums = sums != nullptr ? sums + first : nullptr,
        .add = add};
    const int64_t grid = stripes * row_blocks;
    if (sums != nullptr) {
      Launch(GradientsKernel<T, kRelu, true>, grid, kLinearBlock, stream, arguments);
    } else {
      Launch(GradientsKernel<T, kRelu, false>, grid, kLinearBlock, stream, arguments);
    }
  }
}

struct BiasReluArguments {
  void* y;  // [rows, stride], in place.
  int64_t rows;
  int64_t cols;
  int64_t stride;
  const void* bias;  // [cols], or nullptr.
  bool relu;
  uint8_t* mask;       // [rows, mask_pitch] as ReluMaskBytes describes it; nullptr: not wanted.
  int64_t mask_pitch;  // Bytes.
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
      if (!(value < 0)) bits |= 1u << (v * kWidth + e);  // At 0 too, as cuBLASLt's epilogue has it.
      if (a.relu && value < 0) value = 0;                // NaN stays.
      vector.elements[e] = FromFloat<T>(value);
    }
    reinterpret_cast<Vector<T>*>(y)[v] = vector;
  }
  if (a.mask != nullptr) a.mask[row * a.mask_pitch + byte] = static_cast<uint8_t>(bits);
}

inline void LaunchBiasRelu(Precision precision, const BiasReluArguments& a, const Stream& stream) {
  const Operation operation([&] {
    const double elements = 1.0 * a.rows * a.cols;
    return OperationCost{.name = "bias and ReLU",
                         .bytes = 2.0 * ElementBytes(precision) * elements + (a.mask == nullptr ? 0 : elements / 8)};
  });
  const int64_t blocks = (a.rows * (a.cols / 8) + kLinearBlock - 1) / kLinearBlock;
  WithElementType(precision,
                  [&](auto zero) { Launch(BiasReluKernel<decltype(zero)>, blocks, kLinearBlock, stream, a); });
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_LINEAR_KERNELS_CUH_
