// A pass over the activations computes logits, losses and gradients, while what it has read of a row is in registers.
// The sums over all rows, for the gradients of w and b and the loss, are summed by each block over the rows it takes,
// and by a second, small launch over the blocks, in orders that depend on the sizes alone.

#include <algorithm>

#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/bce_loss.h"
#include "dense/grid_sum.cuh"
#include "dense/last_layer_gpu.h"
#include "dense/precision.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr int kWarps = kBlock / 32;
constexpr int kPacks = 4;  // Of 16 bytes, that a thread holds of the rows its warp works on.
constexpr int kBlockRows = kWarps * kPacks;
constexpr int kBlocksMax = 1024;

int64_t BlocksFor(int64_t rows) { return std::clamp<int64_t>((rows + kBlockRows - 1) / kBlockRows, 1, kBlocksMax); }

// What blocks leave to the launch that adds their sums.
struct Workspace {
  double* losses = nullptr;          // [blocks]
  double* b_sums = nullptr;          // [blocks]
  float* w_sums = nullptr;           // [blocks, in]
  float* logit_gradients = nullptr;  // [n], for layers that go through two passes.
};

size_t WorkspaceBytes(int64_t rows, int64_t in) {
  return static_cast<size_t>(BlocksFor(rows)) * (2 * sizeof(double) + in * sizeof(float)) + rows * sizeof(float);
}

Workspace WorkspaceAt(void* memory, int64_t rows, int64_t in) {
  const int64_t blocks = BlocksFor(rows);
  double* const doubles = static_cast<double*>(memory);
  float* const floats = reinterpret_cast<float*>(doubles + 2 * blocks);
  return {doubles, doubles + blocks, floats, floats + blocks * in};
}

struct LossArguments {
  DeviceMatrix h = {};
  LastLayer layer = {};
  const float* labels = nullptr;
  const uint32_t* samples = nullptr;
  const float* loss_scale = nullptr;
  float* logits = nullptr;  // nullptr: not wanted.
  DeviceMatrix h_gradients = {};
  Workspace workspace = {};  // Without it, no losses.
};

__device__ float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

// kPacks / kVectors rows in the registers of a warp, of at most 32 * kVectors packs each: lane l has packs l, l + 32,
// ... of every row.
template <typename T, int kVectors>
struct WarpRows {
  static constexpr int kRows = kPacks / kVectors;
  Pack<uint32_t, 4> h[kRows][kVectors];

  static __device__ int Column(int v) { return (32 * v + static_cast<int>(threadIdx.x % 32)) * kWidth<T>; }

  __device__ void Read(const DeviceMatrix& from, int64_t first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const T* const row = static_cast<const T*>(from.data) + (first + r) * from.stride;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        h[r][v] = {};
        if (first + r < from.rows && Column(v) < from.cols) {
          h[r][v] = *reinterpret_cast<const Pack<uint32_t, 4>*>(row + Column(v));
        }
      }
    }
  }

  // Element e of pack v of row r.
  __device__ float At(int r, int v, int e) const {
    T element;
    memcpy(&element, reinterpret_cast<const char*>(&h[r][v]) + e * sizeof(T), sizeof(T));
    return ToFloat(element);
  }

  // Makes the compiler take the elements out of the packs again, rather than keep them all as floats, for which there
  // are not enough registers.
  __device__ void Forget() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(h[r][v].values[i]));
      }
    }
  }

  // In lane l the logit of row l % kRows.
  __device__ float Logit(const float (&w)[kVectors][kWidth<T>], float b) const {
    float mine = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float sum = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int e = 0; e < kWidth<T>; ++e) sum += At(r, v, e) * w[v][e];
      }
      sum = WarpSum(sum);
      if (threadIdx.x % kRows == r) mine = sum;
    }
    return mine + b;
  }
};

// The weights of the columns that a lane has.
template <typename T, int kVectors>
__device__ void ReadWeights(const float* from, int64_t in, float (&w)[kVectors][kWidth<T>]) {
  const bool aligned = reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = WarpRows<T, kVectors>::Column(v);
#pragma unroll
    for (int e = 0; e < kWidth<T>; e += 4) {
      float4 four = {0, 0, 0, 0};
      if (column < in) {
        const float* const at = from + column + e;
        four = aligned ? *reinterpret_cast<const float4*>(at) : float4{at[0], at[1], at[2], at[3]};
      }
      w[v][e] = four.x, w[v][e + 1] = four.y, w[v][e + 2] = four.z, w[v][e + 3] = four.w;
    }
  }
}

// A warp takes kRows rows at a time; bytes moved: `in` elements read and a logit of 4 written a row. Bound by HBM.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kBlock) LastLayerForwardKernel(DeviceMatrix h, LastLayer layer, float* logits) {
  using Rows = WarpRows<T, kVectors>;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * Rows::kRows;
  if (first >= h.rows) return;  // The whole warp.
  Rows rows;
  rows.Read(h, first);
  float w[kVectors][kWidth<T>];
  ReadWeights<T, kVectors>(layer.w, h.cols, w);
  const float logit = rows.Logit(w, *layer.b);
  const int lane = threadIdx.x % 32;
  if (lane < Rows::kRows && first + lane < h.rows) logits[first + lane] = logit;
}

// A warp takes kRows rows at a time, its lanes as WarpRows says. All lanes sum a row's logit; lane l computes the loss
// of row l % kRows, so that the exponential and the logarithm in double precision run once for all rows of the warp.
// The sums for w's gradients stay in registers until the block has done its rows. Bytes moved: `in` elements read, `in`
// written, a label of 4 read and, where wanted, a logit of 4 written a row; for each block 4 * in of sums. Bound by
// HBM.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kBlock, kVectors == 1 ? 4 : 2) LastLayerLossKernel(LossArguments a) {
  using Rows = WarpRows<T, kVectors>;
  constexpr int kRows = Rows::kRows;
  constexpr int kColumns = 32 * kWidth<T>;
  __shared__ alignas(16) float sums[kWarps][kColumns];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  WaitForPrevious();
  const int64_t samples = min(a.h.rows, int64_t{*a.samples});
  const float scale = *a.loss_scale;
  const float b = *a.layer.b;
  float w[kVectors][kWidth<T>];
  ReadWeights<T, kVectors>(a.layer.w, a.h.cols, w);
  float w_sums[kVectors][kWidth<T>] = {};
  float b_sum = 0;
  double loss = 0;

  const int64_t step = int64_t{gridDim.x} * kWarps * kRows;
  for (int64_t first = (int64_t{blockIdx.x} * kWarps + warp) * kRows; first < a.h.rows; first += step) {
    Rows rows;
    rows.Read(a.h, first);
    const int64_t mine = first + lane % kRows;  // The row whose loss this lane computes.
    const float label = mine < samples ? a.labels[mine] : 0.0f;
    const float logit = rows.Logit(w, b);
    rows.Forget();
    if (a.logits != nullptr && lane < kRows && mine < a.h.rows) a.logits[mine] = logit;
    float gradient = 0;
    if (mine < samples) {
      const BceTerm term = BceTermOf(logit, label);
      gradient = term.gradient * scale;
      if (lane < kRows) {
        loss += term.loss;
        b_sum += gradient;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float g = __shfl_sync(~0u, gradient, r);
      T* const to = static_cast<T*>(a.h_gradients.data) + (first + r) * a.h_gradients.stride;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        Pack<T, kWidth<T>> result;
#pragma unroll
        for (int e = 0; e < kWidth<T>; ++e) {
          const float x = rows.At(r, v, e);
          w_sums[v][e] += g * x;
          result.values[e] = FromFloat<T>(a.layer.relu && x <= 0 ? 0.0f : g * w[v][e]);
        }
        if (first + r < a.h.rows && Rows::Column(v) < a.h.cols) Store(to + Rows::Column(v), result);
      }
    }
  }
  LetNextStart();

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    __syncthreads();  // The sums have been used.
#pragma unroll
    for (int e = 0; e < kWidth<T>; e += 4) {
      *reinterpret_cast<float4*>(&sums[warp][lane * kWidth<T> + e]) = {w_sums[v][e], w_sums[v][e + 1], w_sums[v][e + 2],
                                                                       w_sums[v][e + 3]};
    }
    __syncthreads();
    for (int c = threadIdx.x; c < kColumns; c += kBlock) {
      const int column = v * kColumns + c;
      if (column >= a.h.cols) break;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) sum += sums[i][c];
      a.workspace.w_sums[blockIdx.x * a.h.cols + column] = sum;
    }
  }
  const double block_loss = BlockSum<kBlock>(loss);
  const double block_b = BlockSum<kBlock>(b_sum);
  if (threadIdx.x == 0) {
    a.workspace.losses[blockIdx.x] = block_loss;
    a.workspace.b_sums[blockIdx.x] = block_b;
  }
}

// ---- Any width and alignment, in two passes: logits by rows, then gradients by columns.

// A warp a row at a time, lane l its columns l, l + 32, ... Without losses, logits alone. Bytes moved: `in` elements
// read a row and 4 to 12 for label, logit and the logit's gradient. Bound by HBM.
template <typename T>
__global__ void __launch_bounds__(kBlock) LastLayerRowsKernel(LossArguments a) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool losses = a.workspace.losses != nullptr;
  const int64_t samples = losses ? min(a.h.rows, int64_t{*a.samples}) : 0;
  float b_sum = 0;
  double loss = 0;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + warp; row < a.h.rows; row += int64_t{gridDim.x} * kWarps) {
    const T* const h = static_cast<const T*>(a.h.data) + row * a.h.stride;
    float sum = 0;
    for (int64_t c = lane; c < a.h.cols; c += 32) sum += ToFloat(h[c]) * a.layer.w[c];
    const float logit = WarpSum(sum) + *a.layer.b;
    if (lane != 0) continue;
    if (a.logits != nullptr) a.logits[row] = logit;
    if (!losses) continue;
    float gradient = 0;
    if (row < samples) {
      const BceTerm term = BceTermOf(logit, a.labels[row]);
      gradient = term.gradient * *a.loss_scale;
      loss += term.loss;
      b_sum += gradient;
    }
    a.workspace.logit_gradients[row] = gradient;
  }
  if (!losses) return;
  const double block_loss = BlockSum<kBlock>(loss);
  const double block_b = BlockSum<kBlock>(b_sum);
  if (threadIdx.x == 0) {
    a.workspace.losses[blockIdx.x] = block_loss;
    a.workspace.b_sums[blockIdx.x] = block_b;
  }
}

// Block (column block, block of rows): 32 columns, a warp every eighth row. Bytes moved: `in` elements read and `in`
// written a row, and the logits' gradients once for 32 columns. Bound by HBM.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    LastLayerColumnsKernel(LossArguments a, int64_t row_blocks, int64_t block_rows) {
  __shared__ float sums[kWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row_block = blockIdx.x % row_blocks;
  const int64_t column = blockIdx.x / row_blocks * 32 + lane;
  float sum = 0;
  if (column < a.h.cols) {
    const float w = a.layer.w[column];
    const int64_t end = min(a.h.rows, (row_block + 1) * block_rows);
    for (int64_t row = row_block * block_rows + warp; row < end; row += kWarps) {
      const float g = a.workspace.logit_gradients[row];
      const float x = ToFloat(static_cast<const T*>(a.h.data)[row * a.h.stride + column]);
      sum += g * x;
      static_cast<T*>(a.h_gradients.data)[row * a.h_gradients.stride + column] =
          FromFloat<T>(a.layer.relu && x <= 0 ? 0.0f : g * w);
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= a.h.cols) return;
  for (int i = 1; i < kWarps; ++i) sum += sums[i][lane];
  a.workspace.w_sums[row_block * a.h.cols + column] = sum;
}

// ---- The sums over blocks.

constexpr int kSumBlock = 1024;

// A block 32 columns of w's sums, its warp i the blocks i, i + 32, ...; the last block the sums for b and the loss.
// Bytes moved: blocks * in * 4, in L2. Bound by latency.
__global__ void __launch_bounds__(kSumBlock)
    LastLayerSumKernel(Workspace workspace, int blocks, int64_t in, float* w_gradients, float* b_gradients,
                       double* loss_sum) {
  WaitForPrevious();
  LetNextStart();
  if (blockIdx.x == gridDim.x - 1) {
    static_assert(kBlocksMax <= kSumBlock);
    const bool is_block = static_cast<int>(threadIdx.x) < blocks;
    const double loss = BlockSum<kSumBlock>(is_block ? workspace.losses[threadIdx.x] : 0);
    const double b = BlockSum<kSumBlock>(is_block ? workspace.b_sums[threadIdx.x] : 0);
    if (threadIdx.x == 0) {
      *loss_sum = loss;
      *b_gradients = static_cast<float>(b);
    }
    return;
  }
  __shared__ double sums[32][33];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t column = int64_t{blockIdx.x} * 32 + lane;
  double sum = 0;
  if (column < in) {
#pragma unroll 16
    for (int i = warp; i < blocks; i += 32) sum += workspace.w_sums[i * in + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  // Warp i adds what the warps have of column i.
  sum = sums[lane][warp];
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(~0u, sum, distance);
  const int64_t mine = int64_t{blockIdx.x} * 32 + warp;
  if (lane == 0 && mine < in) w_gradients[mine] = static_cast<float>(sum);
}

// ---- The choice.

// Packs of 16 bytes that a lane has of a row in one pass: 1, 2 or 4; 0: two passes.
template <typename T>
int VectorsOf(const DeviceMatrix& h) {
  const int64_t packs = (h.cols + kWidth<T> - 1) / kWidth<T>;
  if (!HasAlignedRows<T>(h) || h.cols % kWidth<T> != 0 || packs > 128) return 0;
  return packs <= 32 ? 1 : packs <= 64 ? 2 : 4;
}

// call.operator()<T, vectors>() for one pass, call.operator()<T, 0>() for two.
template <typename Call>
void WithVectors(Precision precision, const DeviceMatrix& h, const DeviceMatrix& h_gradients, Call call) {
  WithElementType(precision, [&]<typename T>(T) {
    switch (HasAlignedRows<T>(h_gradients) ? VectorsOf<T>(h) : 0) {
      case 1:
        return call.template operator()<T, 1>();
      case 2:
        return call.template operator()<T, 2>();
      case 4:
        return call.template operator()<T, 4>();
      default:
        return call.template operator()<T, 0>();
    }
  });
}

}  // namespace

void LastLayerForwardGpu(Precision precision, const DeviceMatrix& h, const LastLayer& layer, float* logits,
                         const Stream& stream) {
  const Operation operation([&] {
    return OperationCost{.name = "last layer", .bytes = 1.0 * h.rows * (ElementBytes(precision) * h.cols + 4)};
  });
  WithVectors(precision, h, h, [&]<typename T, int kVectors>() {
    if constexpr (kVectors > 0) {
      const int64_t block_rows = kBlockRows / kVectors;
      Launch(LastLayerForwardKernel<T, kVectors>, (h.rows + block_rows - 1) / block_rows, kBlock, stream, h, layer,
             logits);
    } else {
      const LossArguments arguments{.h = h, .layer = layer, .logits = logits};
      Launch(LastLayerRowsKernel<T>, (h.rows + kWarps - 1) / kWarps, kBlock, stream, arguments);
    }
  });
}

size_t LastLayerWorkspaceBytes(int64_t rows, int64_t in) { return WorkspaceBytes(rows, in); }

void LastLayerLossGpu(Precision precision, const DeviceMatrix& h, const LastLayer& layer, const float* labels,
                      const uint32_t* samples, const float* loss_scale, float* logits, const DeviceMatrix& h_gradients,
                      float* w_gradients, float* b_gradients, double* loss_sum, void* workspace, const Stream& stream) {
  CHECK(h_gradients.rows == h.rows && h_gradients.cols == h.cols);
  CHECK(IsAligned16(workspace));
  const int64_t blocks = BlocksFor(h.rows);
  const LossArguments arguments{.h = h,
                                .layer = layer,
                                .labels = labels,
                                .samples = samples,
                                .loss_scale = loss_scale,
                                .logits = logits,
                                .h_gradients = h_gradients,
                                .workspace = WorkspaceAt(workspace, h.rows, h.cols)};
  const int64_t column_blocks = (h.cols + 31) / 32;
  WithVectors(precision, h, h_gradients, [&]<typename T, int kVectors>() {
    const double element_bytes = 1.0 * sizeof(T) * h.rows * h.cols, logit_bytes = logits == nullptr ? 0 : 4;
    const double sum_bytes = 4.0 * blocks * h.cols;
    if constexpr (kVectors > 0) {
      const Operation operation([&] {
        return OperationCost{.name = "last layer, loss, gradients",
                             .bytes = 2 * element_bytes + (4 + logit_bytes) * h.rows + sum_bytes};
      });
      LaunchEarly(LastLayerLossKernel<T, kVectors>, blocks, kBlock, stream, arguments);
    } else {
      const Operation operation([&] {
        return OperationCost{.name = "last layer, loss, gradients in two passes",
                             .bytes = 3 * element_bytes + (12 + logit_bytes) * h.rows + sum_bytes};
      });
      Launch(LastLayerRowsKernel<T>, blocks, kBlock, stream, arguments);
      Launch(LastLayerColumnsKernel<T>, column_blocks * blocks, kBlock, stream, arguments, blocks,
             (h.rows + blocks - 1) / blocks);
    }
  });
  const Operation operation([&] {
    return OperationCost{.name = "last layer, sums of blocks", .bytes = 4.0 * blocks * h.cols + 16.0 * blocks};
  });
  LaunchEarly(LastLayerSumKernel, column_blocks + 1, kSumBlock, stream, arguments.workspace, static_cast<int>(blocks),
              h.cols, w_gradients, b_gradients, loss_sum);
}

}  // namespace sparrow
