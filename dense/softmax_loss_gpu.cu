#include <algorithm>

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

constexpr float kLog2E = 1.44269504f;

struct Arguments {
  DeviceMatrix logits = {};
  const uint16_t* targets = nullptr;
  int64_t classes = 0;
  const float* gradient_scale = nullptr;
  float* row_losses = nullptr;
};

// exp(x - most) in two steps, so that for 16-bit logits it costs one multiplication with addition and the hardware's
// power of 2, which is wrong by a few units in the last place of a float: far below the rounding. Any number will do
// for `most` that keeps terms in range, as long as all terms of a sum have the same.
template <typename T>
__device__ float Scaled(float most) {
  return sizeof(T) == 4 ? most : __fmul_rn(most, kLog2E);  // Never fused with what follows: equal ones must cancel.
}
template <typename T>
__device__ float Power(float exponent) {
  if constexpr (sizeof(T) == 4) return expf(exponent);
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}
template <typename T>
__device__ float Term(float x, float scaled_most) {
  return Power<T>(sizeof(T) == 4 ? x - scaled_most : fmaf(x, kLog2E, -scaled_most));
}

// Of some numbers: the largest one, or kLeast, and the sum of their terms by it. A NaN among them is in the sum.
constexpr float kLeast = -1e38f;
struct SoftmaxSums {
  float most = kLeast;
  float sum = 0;
};

// The same whichever comes first, bit for bit: nothing is fused.
template <typename T>
__device__ SoftmaxSums Combined(SoftmaxSums a, SoftmaxSums b) {
  const float most = fmaxf(a.most, b.most), scaled = Scaled<T>(most);
  return {most, __fmul_rn(a.sum, Power<T>(Scaled<T>(a.most) - scaled)) +
                    __fmul_rn(b.sum, Power<T>(Scaled<T>(b.most) - scaled))};
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

// With the first `left` elements of a pack.
template <typename T>
__device__ SoftmaxSums WithPack(SoftmaxSums sums, const RowPack<T>& pack, int left) {
  constexpr int kCount = kWidth<T>;
  float values[kCount];
#pragma unroll
  for (int e = 0; e < kCount; ++e) values[e] = pack.At(e);
  if (left < kCount) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) values[e] = e < left ? values[e] : -INFINITY;
  }
  float most = sums.most;
#pragma unroll
  for (int e = 0; e < kCount; ++e) most = fmaxf(most, values[e]);
  const float scaled = Scaled<T>(most);
  float sum = sums.sum * Power<T>(Scaled<T>(sums.most) - scaled);
#pragma unroll
  for (int e = 0; e < kCount; ++e) sum += Term<T>(values[e], scaled);
  return {most, sum};
}

// log(sum_j exp(logit_j)) - target.
template <typename T>
__device__ float LossOf(SoftmaxSums sums, float target) {
  const float loss = logf(sums.sum) + (sums.most - target);
  if constexpr (sizeof(T) == 4) return loss;
  return loss - fmaf(sums.most, kLog2E, -Scaled<T>(sums.most)) / kLog2E;  // What Scaled has rounded off.
}

// A block a row; its threads take packs of the row in turn. The first pass reads the row and finds its sums, the second
// makes the gradients of it: from shared memory with kShared, else from GPU memory again, which has much of it in L2.
// Bytes moved: the row read and, where gradients are wanted, written; 6 for target and loss. Bound by HBM.
template <typename T, bool kWhole, bool kShared>
__global__ void __launch_bounds__(kBlockMax, 2) SoftmaxLossKernel(Arguments a) {
  constexpr int kCount = kWidth<T>;
  extern __shared__ uint4 kept_memory[];  // [packs of the classes]
  RowPack<T>* const kept = reinterpret_cast<RowPack<T>*>(kept_memory);
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
      if constexpr (kShared) kept[pack] = read[u];
      sums = WithPack<T>(sums, read[u], classes - pack * kCount);
    }
  }
  sums = WarpCombined<T>(sums);
  if (thread % 32 == 0) warps[thread / 32] = sums;
  __syncthreads();
  sums = WarpCombined<T>(thread % 32 < threads / 32 ? warps[thread % 32] : SoftmaxSums());
  if (thread == 0) a.row_losses[row] = LossOf<T>(sums, ToFloat(logits[target]));
  if (a.gradient_scale == nullptr) return;
  __syncthreads();  // The target's logit has been read.

  const float scale = *a.gradient_scale;
  const float factor = scale / sums.sum, scaled = Scaled<T>(sums.most);
  for (int pack = thread; pack < packs; pack += threads) {
    const int column = pack * kCount;
    const RowPack<T> read = kShared ? kept[pack] : ReadPack<kWhole>(logits + column, classes - column);
    float values[kCount];
#pragma unroll
    for (int e = 0; e < kCount; ++e) values[e] = Term<T>(read.At(e), scaled) * factor;
    if (column <= target && target < column + kCount) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) values[e] -= column + e == target ? scale : 0.0f;
    }
    if (column + kCount > classes) {
#pragma unroll
      for (int e = 0; e < kCount; ++e) values[e] = column + e < classes ? values[e] : 0.0f;
    }
    WritePack<kWhole>(logits + column, cols - column, RowPack<T>::Of(values));
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
