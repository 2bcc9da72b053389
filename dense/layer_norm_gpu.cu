// A row lies in the registers of one or some warps. Backward, a thread has one pack of 16 bytes of each of its rows, so
// that it has few columns, whose sums over all rows it keeps for the parameters' gradients. Rows that do not lie in
// whole packs, or are too wide, go through kernels that read them several times.

#include <algorithm>

#include "base/check.h"
#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/column_sums.cuh"
#include "dense/layer_norm_gpu.h"
#include "dense/row_packs.cuh"

namespace sparrow {
namespace {

__device__ float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

__device__ RowMoments MomentsOf(float mean, float squares, int64_t width) {
  return {mean, 1 / sqrtf(squares / static_cast<float>(width) + kLayerNormEps)};
}

// ---- Forward.

constexpr int kBlock = 256;
constexpr int kWarps = kBlock / 32;

struct ForwardArguments {
  DeviceMatrix residual = {};
  DeviceMatrix branch = {};  // data null: there is none.
  DropoutGpu dropout = {};
  DeviceMatrix sum = {};
  const void* weight = nullptr;
  const void* bias = nullptr;
  RowMoments* moments = nullptr;
  DeviceMatrix y = {};
};

// The sum of `value` over the warps of a row, in all their threads. `warps` is the block's memory for it; not the one
// of the sum before.
__device__ float RowSum(float value, int row_warps, float* warps) {
  value = WarpSum(value);
  if (row_warps == 1) return value;
  const int warp = threadIdx.x / 32, row = warp / row_warps;
  if (threadIdx.x % 32 == 0) warps[warp] = value;
  asm volatile("bar.sync %0, %1;" ::"r"(row + 1), "r"(32 * row_warps) : "memory");
  value = 0;
  for (int i = 0; i < row_warps; ++i) value += warps[row * row_warps + i];
  return value;
}

// row_warps warps a row, of which thread t has packs t, t + 32 row_warps, ... Bytes moved: an element each of residual,
// branch, sum and y, or of residual and y, and 8 a row. Bound by HBM.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kBlock, 4) AddLayerNormForwardKernel(ForwardArguments a, int row_warps) {
  constexpr int kCount = kWidth<T>;
  __shared__ float sums[2][kWarps];
  const int row_threads = 32 * row_warps;
  const int64_t row = int64_t{blockIdx.x} * (kWarps / row_warps) + threadIdx.x / row_threads;
  const int width = static_cast<int>(a.residual.cols);
  if (row >= a.residual.rows) return;  // All warps of the row.
  const int first = static_cast<int>(threadIdx.x % row_threads) * kCount, step = row_threads * kCount;
  const bool adds = a.branch.data != nullptr;
  RowPack<T> x[kVectors], branch[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first + v * step;
    if (column >= width) continue;
    x[v] = ReadPack<true>(ElementAt<const T>(a.residual, row, column), kCount);
    if (adds) branch[v] = ReadPack<true>(ElementAt<const T>(a.branch, row, column), kCount);
  }
  if (adds) {
    const bool drops = a.dropout.enabled();
    const Dropout mask = drops ? a.dropout.Mask() : Dropout();
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = first + v * step;
      if (column >= width) continue;
      float values[kCount];
#pragma unroll
      for (int e = 0; e < kCount; ++e) values[e] = branch[v].At(e);
      if (drops) Drop<T>(mask, static_cast<uint64_t>(row * width + column), values);
#pragma unroll
      for (int e = 0; e < kCount; ++e) values[e] += x[v].At(e);
      x[v] = RowPack<T>::Of(values);
      WritePack<true>(ElementAt<T>(a.sum, row, column), kCount, x[v]);
    }
  }

  float sum = 0, squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first + v * step >= width) continue;
#pragma unroll
    for (int e = 0; e < kCount; ++e) sum += x[v].At(e);
  }
  const float mean = RowSum(sum, row_warps, sums[0]) / static_cast<float>(width);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first + v * step >= width) continue;
    x[v].Forget();
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const float distance = x[v].At(e) - mean;
      squares += distance * distance;
    }
  }
  const RowMoments m = MomentsOf(mean, RowSum(squares, row_warps, sums[1]), width);
  if (first == 0) a.moments[row] = m;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = first + v * step;
    if (column >= width) continue;
    const RowPack<T> weight = ReadPack<true>(static_cast<const T*>(a.weight) + column, kCount);
    const RowPack<T> bias = ReadPack<true>(static_cast<const T*>(a.bias) + column, kCount);
    x[v].Forget();
    float y[kCount];
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const float normal = (x[v].At(e) - m.mean) * m.inverse_deviation;
      y[e] = normal * weight.At(e) + bias.At(e);
    }
    WritePack<true>(ElementAt<T>(a.y, row, column), kCount, RowPack<T>::Of(y));
  }
}

// Any width and alignment: a warp a row, lane l its columns l, l + 32, ..., which it reads three times. Bytes moved: as
// AddLayerNormForwardKernel, and the sum twice more, from caches where a row fits. Bound by those.
template <typename T>
__global__ void __launch_bounds__(kBlock) AddLayerNormForwardAnyKernel(ForwardArguments a) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t width = a.residual.cols;
  if (row >= a.residual.rows) return;  // The whole warp.
  const int64_t lane = threadIdx.x % 32;
  const bool adds = a.branch.data != nullptr, drops = adds && a.dropout.enabled();
  const Dropout mask = drops ? a.dropout.Mask() : Dropout();
  const DeviceMatrix& from = adds ? a.sum : a.residual;
  float sum = 0;
  for (int64_t j = lane; j < width; j += 32) {
    float value = ToFloat(*ElementAt<const T>(a.residual, row, j));
    if (adds) {
      float branch = ToFloat(*ElementAt<const T>(a.branch, row, j));
      if (drops) branch *= mask.Factor(static_cast<uint64_t>(row * width + j));
      const T stored = FromFloat<T>(value + branch);
      *ElementAt<T>(a.sum, row, j) = stored;
      value = ToFloat(stored);
    }
    sum += value;
  }
  const float mean = WarpSum(sum) / static_cast<float>(width);
  float squares = 0;
  for (int64_t j = lane; j < width; j += 32) {
    const float distance = ToFloat(*ElementAt<const T>(from, row, j)) - mean;
    squares += distance * distance;
  }
  const RowMoments m = MomentsOf(mean, WarpSum(squares), width);
  if (lane == 0) a.moments[row] = m;
  for (int64_t j = lane; j < width; j += 32) {
    const float normal = (ToFloat(*ElementAt<const T>(from, row, j)) - m.mean) * m.inverse_deviation;
    *ElementAt<T>(a.y, row, j) =
        FromFloat<T>(normal * ToFloat(static_cast<const T*>(a.weight)[j]) + ToFloat(static_cast<const T*>(a.bias)[j]));
  }
}

// call.operator()<packs of a thread>(warps of a row); 0 packs: rows are too wide.
template <typename Call>
void WithVectors(int64_t packs, Call call) {
  constexpr int kVectorsMax = 4;
  int row_warps = 1;
  while (row_warps < kWarps && packs > 32 * row_warps * kVectorsMax) row_warps *= 2;
  switch ((packs + 32 * row_warps - 1) / (32 * row_warps)) {
    case 0:
    case 1:
      return call.template operator()<1>(row_warps);
    case 2:
      return call.template operator()<2>(row_warps);
    case 3:
      return call.template operator()<3>(row_warps);
    case 4:
      return call.template operator()<4>(row_warps);
    default:
      return call.template operator()<0>(row_warps);
  }
}

// ---- Backward.

constexpr int kRowsAtATime = 2;  // Of a group of warps, whose reads are in flight.
// Threads of a block: some groups of warps, or one group that is larger than that. What is left for a thread are 80 or
// 64 registers.
constexpr int kGroupsBlock = 384;
constexpr int kGroupMax = 1024;
constexpr int64_t kMultiprocessors = 132;  // Of an H200; the same on every GPU, for the same sums.

struct BackwardArguments {
  DeviceMatrix y_gradients = {};
  DeviceMatrix x = {};
  const void* weight = nullptr;
  const RowMoments* moments = nullptr;
  bool add = false;
  DeviceMatrix x_gradients = {};
  DropoutGpu dropout = {};
  DeviceMatrix branch_gradients = {};
  float* partials = nullptr;
};

// How rows are divided: a group of warps takes kRowsAtATime rows at a time.
struct GroupGrid {
  int warps = 0;   // Of a group,
  int groups = 0;  // of a block.
  int64_t blocks = 0;

  static GroupGrid Of(int64_t n, int64_t packs) {
    const int warps = std::max(1, static_cast<int>((packs + 31) / 32));
    const int groups = std::max(1, kGroupsBlock / 32 / warps);
    const int threads = 32 * warps * groups;
    const int64_t at_a_time = int64_t{groups} * kRowsAtATime;
    // As many as run at a time.
    const int64_t blocks_max = kMultiprocessors * std::max(1, (threads > kGroupsBlock ? 1024 : 768) / threads);
    return {warps, groups, std::min(blocks_max, (n + at_a_time - 1) / at_a_time)};
  }
  int threads() const { return 32 * warps * groups; }
  int64_t partial_rows() const { return blocks * groups; }
};

// What a row's gradients need beside their own column: the means over the row of the gradients by its normalised
// elements, and of their products with those.
struct RowMeans {
  float gradient;
  float with_normal;
};

// A thread of a group has a pack of each of its rows, and sums its columns for the parameters' gradients in registers;
// partials are [groups of the grid, weight | bias]. Each row's sums go through shared memory, with one barrier of the
// group for kRowsAtATime rows. Bytes moved: an element each of y_gradients, x, x_gradients, where wanted of
// branch_gradients, and with `add` of x_gradients once more; 8 a row, and 8 a column and group. Bound by HBM.
template <typename T, int kThreadsMax>
__global__ void __launch_bounds__(kThreadsMax, kThreadsMax == kGroupsBlock ? 2 : 1)
    LayerNormBackwardKernel(BackwardArguments a, GroupGrid grid) {
  constexpr int kCount = kWidth<T>;
  constexpr int kSums = 2 * kRowsAtATime;
  static_assert(kSums == 4);  // One float4.
  __shared__ float4 sums[2][kThreadsMax / 32];
  const int64_t n = a.x.rows, width = a.x.cols;
  const int warp = threadIdx.x / 32;
  const int group = warp / grid.warps;
  const int first_warp = group * grid.warps;
  const int column = static_cast<int>(threadIdx.x - 32 * first_warp) * kCount;
  const bool mine = column < width;
  const int64_t index = int64_t{blockIdx.x} * grid.groups + group;
  const float inverse_width = 1 / static_cast<float>(width);
  const bool drops = a.branch_gradients.data != nullptr && a.dropout.enabled();
  const Dropout mask = drops ? a.dropout.Mask() : Dropout();
  RowPack<T> weight = {};
  if (mine) weight = ReadPack<true>(static_cast<const T*>(a.weight) + column, kCount);
  float of_weight[kCount] = {}, of_bias[kCount] = {};

  int buffer = 0;
  const int64_t step = int64_t{gridDim.x} * grid.groups * kRowsAtATime;
  for (int64_t first = index * kRowsAtATime; first < n; first += step, buffer ^= 1) {
    RowPack<T> dy[kRowsAtATime], x[kRowsAtATime], before[kRowsAtATime];
    RowMoments m[kRowsAtATime];
#pragma unroll
    for (int r = 0; r < kRowsAtATime; ++r) {
      dy[r] = x[r] = before[r] = {};
      m[r] = {};
      if (first + r >= n) continue;
      m[r] = a.moments[first + r];
      if (!mine) continue;
      dy[r] = ReadPack<true>(ElementAt<const T>(a.y_gradients, first + r, column), kCount);
      x[r] = ReadPack<true>(ElementAt<const T>(a.x, first + r, column), kCount);
      if (a.add) before[r] = ReadPack<true>(ElementAt<const T>(a.x_gradients, first + r, column), kCount);
    }
    float mine_of_rows[kSums] = {};
#pragma unroll
    for (int r = 0; r < kRowsAtATime; ++r) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        const float normal = mine ? (x[r].At(e) - m[r].mean) * m[r].inverse_deviation : 0.0f;
        const float out = dy[r].At(e);
        const float gradient = out * weight.At(e);
        mine_of_rows[2 * r] += gradient;
        mine_of_rows[2 * r + 1] += gradient * normal;
        of_weight[e] += out * normal;
        of_bias[e] += out;
      }
    }
#pragma unroll
    for (float& value : mine_of_rows) value = WarpSum(value);
    weight.Forget();
#pragma unroll
    for (int r = 0; r < kRowsAtATime; ++r) {
      dy[r].Forget();
      x[r].Forget();
      before[r].Forget();
    }
    float4 total = {mine_of_rows[0], mine_of_rows[1], mine_of_rows[2], mine_of_rows[3]};
    if (grid.warps > 1) {
      if (threadIdx.x % 32 == 0) sums[buffer][warp] = total;
      asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(32 * grid.warps) : "memory");
      total = {0, 0, 0, 0};
      for (int w = 0; w < grid.warps; ++w) {
        const float4 of_warp = sums[buffer][first_warp + w];
        total.x += of_warp.x, total.y += of_warp.y, total.z += of_warp.z, total.w += of_warp.w;
      }
    }
    const RowMeans means[kRowsAtATime] = {{total.x * inverse_width, total.y * inverse_width},
                                          {total.z * inverse_width, total.w * inverse_width}};
#pragma unroll
    for (int r = 0; r < kRowsAtATime; ++r) {
      if (first + r >= n || !mine) continue;
      float values[kCount];
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        const float normal = (x[r].At(e) - m[r].mean) * m[r].inverse_deviation;
        const float gradient = dy[r].At(e) * weight.At(e);
        values[e] = (gradient - means[r].gradient - normal * means[r].with_normal) * m[r].inverse_deviation;
        if (a.add) values[e] += before[r].At(e);
      }
      WritePack<true>(ElementAt<T>(a.x_gradients, first + r, column), kCount, RowPack<T>::Of(values));
      if (a.branch_gradients.data == nullptr) continue;
      if (drops) Drop<T>(mask, static_cast<uint64_t>((first + r) * width + column), values);
      WritePack<true>(ElementAt<T>(a.branch_gradients, first + r, column), kCount, RowPack<T>::Of(values));
    }
  }
  if (!mine) return;
  float* const to = a.partials + index * 2 * width + column;
#pragma unroll
  for (int e = 0; e < kCount; e += 4) {
    *reinterpret_cast<float4*>(to + e) = {of_weight[e], of_weight[e + 1], of_weight[e + 2], of_weight[e + 3]};
    *reinterpret_cast<float4*>(to + width + e) = {of_bias[e], of_bias[e + 1], of_bias[e + 2], of_bias[e + 3]};
  }
}

// ---- Any width and alignment, in two launches: the parameters' gradients, then those of the rows, which may overwrite
// what the first one reads.

constexpr int64_t kColumnRowBlocks = 256;

// Block (column block, block of rows): 32 columns, a warp every eighth row. partials are [blocks of rows, weight |
// bias]. Bytes moved: an element each of y_gradients and x, 8 a row and column block, 8 a column and block of rows.
// Bound by HBM.
template <typename T>
__global__ void __launch_bounds__(kBlock)
    LayerNormParametersKernel(BackwardArguments a, int64_t row_blocks, int64_t block_rows) {
  __shared__ float sums[2][kWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row_block = blockIdx.x % row_blocks;
  const int64_t column = blockIdx.x / row_blocks * 32 + lane;
  float of_weight = 0, of_bias = 0;
  if (column < a.x.cols) {
    const int64_t end = min(a.x.rows, (row_block + 1) * block_rows);
    for (int64_t row = row_block * block_rows + warp; row < end; row += kWarps) {
      const RowMoments m = a.moments[row];
      const float out = ToFloat(*ElementAt<const T>(a.y_gradients, row, column));
      of_weight += out * (ToFloat(*ElementAt<const T>(a.x, row, column)) - m.mean) * m.inverse_deviation;
      of_bias += out;
    }
  }
  sums[0][warp][lane] = of_weight;
  sums[1][warp][lane] = of_bias;
  __syncthreads();
  if (warp > 1 || column >= a.x.cols) return;
  float sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += sums[warp][i][lane];
  a.partials[(row_block * 2 + warp) * a.x.cols + column] = sum;
}

// A warp a row, lane l its columns l, l + 32, ..., which it reads twice. Bytes moved: as LayerNormBackwardKernel, and
// y_gradients and x once more, from caches where a row fits. Bound by those.
template <typename T>
__global__ void __launch_bounds__(kBlock) LayerNormBackwardAnyKernel(BackwardArguments a) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t width = a.x.cols;
  if (row >= a.x.rows) return;  // The whole warp.
  const int64_t lane = threadIdx.x % 32;
  const T* const weight = static_cast<const T*>(a.weight);
  const bool drops = a.branch_gradients.data != nullptr && a.dropout.enabled();
  const Dropout mask = drops ? a.dropout.Mask() : Dropout();
  const RowMoments m = a.moments[row];
  float sum = 0, sum_with_normal = 0;
  for (int64_t j = lane; j < width; j += 32) {
    const float normal = (ToFloat(*ElementAt<const T>(a.x, row, j)) - m.mean) * m.inverse_deviation;
    const float gradient = ToFloat(*ElementAt<const T>(a.y_gradients, row, j)) * ToFloat(weight[j]);
    sum += gradient;
    sum_with_normal += gradient * normal;
  }
  const RowMeans means = {WarpSum(sum) / static_cast<float>(width),
                          WarpSum(sum_with_normal) / static_cast<float>(width)};
  for (int64_t j = lane; j < width; j += 32) {
    const float normal = (ToFloat(*ElementAt<const T>(a.x, row, j)) - m.mean) * m.inverse_deviation;
    const float gradient = ToFloat(*ElementAt<const T>(a.y_gradients, row, j)) * ToFloat(weight[j]);
    float value = (gradient - means.gradient - normal * means.with_normal) * m.inverse_deviation;
    T* const to = ElementAt<T>(a.x_gradients, row, j);
    if (a.add) value += ToFloat(*to);
    *to = FromFloat<T>(value);
    if (a.branch_gradients.data == nullptr) continue;
    if (drops) value *= mask.Factor(static_cast<uint64_t>(row * width + j));
    *ElementAt<T>(a.branch_gradients, row, j) = FromFloat<T>(value);
  }
}

int64_t ColumnRowBlocks(int64_t n) { return std::min(kColumnRowBlocks, n); }

bool SameExtents(const DeviceMatrix& a, const DeviceMatrix& b) { return a.rows == b.rows && a.cols == b.cols; }

}  // namespace

void AddLayerNormForwardGpu(Precision precision, const DeviceMatrix& residual, const DeviceMatrix& branch,
                            const DropoutGpu& dropout, const DeviceMatrix& sum, const void* weight, const void* bias,
                            RowMoments* moments, const DeviceMatrix& y, const Stream& stream) {
  const bool adds = branch.data != nullptr;
  CHECK(SameExtents(residual, y) && (!adds || (SameExtents(residual, branch) && SameExtents(residual, sum))));
  const ForwardArguments a{residual, branch, dropout, sum, weight, bias, moments, y};
  WithElementType(precision, [&]<typename T>(T) {
    const Operation operation([&] {
      return OperationCost{.name = adds ? "residual sum, layer norm" : "layer norm",
                           .bytes = 1.0 * residual.rows * ((adds ? 4 : 2) * sizeof(T) * residual.cols + 8)};
    });
    const bool whole = HasWholePacks<T>(residual) && HasWholePacks<T>(y) && IsAligned16(weight) && IsAligned16(bias) &&
                       (!adds || (HasWholePacks<T>(branch) && HasWholePacks<T>(sum)));
    WithVectors(whole ? PacksOf<T>(residual.cols) : INT32_MAX, [&]<int kVectors>(int row_warps) {
      if constexpr (kVectors > 0) {
        const int64_t block_rows = kWarps / row_warps;
        Launch(AddLayerNormForwardKernel<T, kVectors>, (residual.rows + block_rows - 1) / block_rows, kBlock, stream, a,
               row_warps);
      } else {
        Launch(AddLayerNormForwardAnyKernel<T>, (residual.rows + kWarps - 1) / kWarps, kBlock, stream, a);
      }
    });
  });
}

size_t LayerNormWorkspaceFloats(int64_t n, int64_t width) {
  int64_t rows = ColumnRowBlocks(n);
  for (const int64_t packs : {PacksOf<float>(width), PacksOf<__nv_bfloat16>(width)}) {
    rows = std::max(rows, GroupGrid::Of(n, packs).partial_rows());
  }
  return static_cast<size_t>(rows * 2 * width);
}

void LayerNormBackwardGpu(Precision precision, const DeviceMatrix& y_gradients, const DeviceMatrix& x,
                          const void* weight, const RowMoments* moments, const LayerNormGradients& gradients,
                          float* workspace, const Stream& stream) {
  const bool add = gradients.write == Write::kAdd, branches = gradients.branch_gradients.data != nullptr;
  CHECK(SameExtents(x, y_gradients) && SameExtents(x, gradients.x_gradients) &&
        (!branches || SameExtents(x, gradients.branch_gradients)));
  CHECK(IsAligned16(workspace));
  const BackwardArguments a{y_gradients,
                            x,
                            weight,
                            moments,
                            add,
                            gradients.x_gradients,
                            gradients.dropout,
                            gradients.branch_gradients,
                            /*partials=*/workspace};
  const int64_t n = x.rows, width = x.cols;
  PartialSums sums{.values = workspace,
                   .to = gradients.weight_gradients,
                   .cols = width,
                   .second = gradients.bias_gradients,
                   .second_cols = width};
  WithElementType(precision, [&]<typename T>(T) {
    const int64_t packs = PacksOf<T>(width);
    const double row_bytes = (3.0 + add + branches) * sizeof(T) * width + 8;
    if (HasWholePacks<T>(x) && HasWholePacks<T>(y_gradients) && HasWholePacks<T>(gradients.x_gradients) &&
        (!branches || HasWholePacks<T>(gradients.branch_gradients)) && IsAligned16(weight) && packs <= kGroupMax) {
      const GroupGrid grid = GroupGrid::Of(n, packs);
      sums.rows = grid.partial_rows();
      const Operation operation([&] {
        return OperationCost{.name = "layer norm backward", .bytes = row_bytes * n + 8.0 * sums.rows * width};
      });
      const auto kernel = grid.threads() <= kGroupsBlock ? LayerNormBackwardKernel<T, kGroupsBlock>
                                                         : LayerNormBackwardKernel<T, kGroupMax>;
      Launch(kernel, grid.blocks, grid.threads(), stream, a, grid);
    } else {
      sums.rows = ColumnRowBlocks(n);
      const int64_t block_rows = sums.rows == 0 ? 0 : (n + sums.rows - 1) / sums.rows;
      const Operation operation([&] {
        return OperationCost{.name = "layer norm backward in two passes",
                             .bytes = row_bytes * n + 2.0 * sizeof(T) * n * width + 8.0 * sums.rows * width};
      });
      Launch(LayerNormParametersKernel<T>, (width + 31) / 32 * sums.rows, kBlock, stream, a, sums.rows, block_rows);
      Launch(LayerNormBackwardAnyKernel<T>, (n + kWarps - 1) / kWarps, kBlock, stream, a);
    }
    AddPartialSums(sums, stream);
  });
}

}  // namespace sparrow
