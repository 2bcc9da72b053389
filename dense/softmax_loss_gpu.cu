#include <cfloat>

#include "base/check.h"
#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/grid_sum.cuh"
#include "dense/row_packs.cuh"
#include "dense/softmax_loss_gpu.h"

namespace sparrow {
namespace {

constexpr int kBlockMax = 512;
constexpr int kUnroll = 4;                             // Packs of a thread whose reads are in flight.
constexpr size_t kSharedBytesMax = size_t{224} << 10;  // Of a row; Hopper has 227 KiB for a block.

struct Arguments {
  DeviceMatrix logits = {};
  const uint16_t* targets = nullptr;
  int64_t classes = 0;
  const float* gradient_scale = nullptr;
  float* row_losses = nullptr;
};

// The hardware's exponential is wrong by a few units in the last place of a float, far below the rounding to 16 bits.
template <typename T>
__device__ float Exponential(float x) {
  if constexpr (sizeof(T) == 4) return expf(x);
  return __expf(x);
}

// Of some numbers: the largest one, or -FLT_MAX, and the sum of exp(number - most). A NaN among them is in the sum.
struct SoftmaxSums {
  float most = -FLT_MAX;
  float sum = 0;
};

template <typename T>
__device__ SoftmaxSums Combined(SoftmaxSums a, SoftmaxSums b) {
  const float most = fmaxf(a.most, b.most);
  return {most, a.sum * Exponential<T>(a.most - most) + b.sum * Exponential<T>(b.most - most)};
}

template <typename T>
__device__ SoftmaxSums WarpCombined(SoftmaxSums sums) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const SoftmaxSums other = {__shfl_xor_sync(~0u, sums.most, distance), __shfl_xor_sync(~0u, sums.sum, distance)};
    sums = Combined<T>(sums, other);
  }
  return sums;
}

// A block a row; its threads take packs of the row in turn. The first pass reads the row and finds its sums, the second
// makes the gradients of it: from shared memory with kShared, else from GPU memory again, which has much of it in L2.
// Bytes moved: the row read and, where gradients are wanted, written; 6 for target and loss. Bound by HBM.
template <typename T, bool kWhole, bool kShared>
__global__ void __launch_bounds__(kBlockMax, 2) SoftmaxLossKernel(Arguments a) {
  constexpr int kCount = kWidth<T>;
  extern __shared__ uint4 kept[];  // [packs of the classes]
  __shared__ SoftmaxSums warps[kBlockMax / 32];
  const int64_t row = blockIdx.x;
  T* const logits = ElementAt<T>(a.logits, row, 0);
  const int classes = static_cast<int>(a.classes), cols = static_cast<int>(a.logits.cols);
  const int packs = (classes + kCount - 1) / kCount;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int target = a.targets[row];

  SoftmaxSums sums;
  for (int first = thread; first < packs; first += kUnroll * threads) {
    RowPack<T> read[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int pack = first + u * threads;
      if (pack < packs) read[u] = ReadPack<kWhole>(logits + pack * kCount, classes - pack * kCount);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int pack = first + u * threads;
      if (pack >= packs) break;
      if constexpr (kShared) memcpy(&kept[pack], &read[u], sizeof(uint4));
      const int left = classes - pack * kCount;
      float values[kCount];
      float most = sums.most;
#pragma unroll
      for (int e = 0; e < kCount; ++e) {
        values[e] = e < left ? ToFloat(read[u].values[e]) : -INFINITY;
        most = fmaxf(most, values[e]);
      }
      float sum = sums.sum * Exponential<T>(sums.most - most);
#pragma unroll
      for (int e = 0; e < kCount; ++e) sum += Exponential<T>(values[e] - most);
      sums = {most, sum};
    }
  }
  sums = WarpCombined<T>(sums);
  if (thread % 32 == 0) warps[thread / 32] = sums;
  __syncthreads();
  sums = WarpCombined<T>(thread % 32 < threads / 32 ? warps[thread % 32] : SoftmaxSums());
  if (thread == 0) {
    a.row_losses[row] = logf(sums.sum) + (sums.most - ToFloat(logits[target]));
  }
  if (a.gradient_scale == nullptr) return;
  __syncthreads();  // The target's logit has been read.

  const float scale = *a.gradient_scale;
  const float factor = scale / sums.sum;
  for (int pack = thread; pack < packs; pack += threads) {
    const int column = pack * kCount;
    RowPack<T> read;
    if constexpr (kShared) {
      memcpy(&read, &kept[pack], sizeof(read));
    } else {
      read = ReadPack<kWhole>(logits + column, classes - column);
    }
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      float value = Exponential<T>(ToFloat(read.values[e]) - sums.most) * factor;
      if (column + e == target) value -= scale;
      read.values[e] = FromFloat<T>(column + e < classes ? value : 0.0f);
    }
    WritePack<kWhole>(logits + column, cols - column, read);
  }
  for (int column = packs * kCount + thread; column < cols; column += threads) logits[column] = FromFloat<T>(0.0f);
}

constexpr int kSumBlock = 1024;

// One block. Bytes moved: 4 a row, in L2. Bound by latency.
__global__ void __launch_bounds__(kSumBlock) SumLossesKernel(const float* row_losses, int64_t n, double* loss_sum) {
  WaitForPrevious();
  LetNextStart();
  double sum = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += kSumBlock) sum += row_losses[i];
  sum = BlockSum<kSumBlock>(sum);
  if (threadIdx.x == 0) *loss_sum += sum;
}

// Threads of a block: the same for rows of one extent on every GPU, as sums depend on it.
int BlockOf(int64_t packs) {
  const int64_t wanted = (packs + 2 * kUnroll - 1) / (2 * kUnroll);  // A thread loops twice.
  return static_cast<int>(std::clamp<int64_t>((wanted + 31) / 32 * 32, 32, kBlockMax));
}

}  // namespace

void SoftmaxLossGpu(Precision precision, const DeviceMatrix& logits, const uint16_t* targets, int64_t classes,
                    const float* gradient_scale, float* row_losses, double* loss_sum, const Stream& stream) {
  CHECK(classes > 0 && classes <= logits.cols) << classes << " classes in " << logits.cols << " columns";
  if (logits.rows == 0) return;
  const bool gradients = gradient_scale != nullptr;
  const Arguments a{logits, targets, classes, gradient_scale, row_losses};
  WithElementType(precision, [&]<typename T>(T) {
    const int64_t packs = PacksOf<T>(classes);
    const int block = BlockOf(packs);
    const size_t shared_bytes = gradients ? packs * sizeof(uint4) : 0;
    const Operation operation([&] {
      return OperationCost{.name = gradients ? "softmax loss, gradients" : "softmax loss",
                           .bytes = 1.0 * logits.rows * (sizeof(T) * (classes + (gradients ? logits.cols : 0)) + 6)};
    });
    if (!HasWholePacks<T>(logits)) {
      Launch(SoftmaxLossKernel<T, false, false>, logits.rows, block, stream, a);
    } else if (shared_bytes == 0 || shared_bytes > kSharedBytesMax) {
      Launch(SoftmaxLossKernel<T, true, false>, logits.rows, block, stream, a);
    } else {
      LaunchShared(SoftmaxLossKernel<T, true, true>, logits.rows, block, shared_bytes, stream, a);
    }
  });
  const Operation operation([&] { return OperationCost{.name = "sum of losses", .bytes = 4.0 * logits.rows}; });
  LaunchEarly(SumLossesKernel, 1, kSumBlock, stream, row_losses, logits.rows, loss_sum);
}

}  // namespace sparrow
