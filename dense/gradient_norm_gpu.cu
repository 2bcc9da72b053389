#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/gradient_norm_gpu.h"
#include "dense/grid_sum.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr int kUnroll = 4;  // Vectors a thread has on their way at a time.

__device__ double Square(float value) { return static_cast<double>(value) * value; }

// The squares of one thread. Thread t of the grid takes vectors of four elements, t, t + threads, t + 2 threads, ...,
// and the first threads one each of the last size % 4 elements.
__device__ double Squares(const float* __restrict__ gradients, int64_t size) {
  const int64_t thread = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * kBlock;
  const int64_t vectors = size / 4;
  double sum = 0;
  for (int64_t i = thread; i < vectors; i += kUnroll * threads) {
    float4 values[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * threads < vectors) values[u] = reinterpret_cast<const float4*>(gradients)[i + u * threads];
    }
#pragma unroll
    for (const float4 v : values) sum += (Square(v.x) + Square(v.y)) + (Square(v.z) + Square(v.w));
  }
  if (thread < size % 4) sum += Square(gradients[vectors * 4 + thread]);
  return sum;
}

// Threads as in Squares. Bytes moved: 4 an element, read. Bound by HBM.
__global__ void __launch_bounds__(kBlock)
    GradientNormKernel(const float* __restrict__ gradients, int64_t size, const DenseStepOptions* step,
                       ClipOptions options, GridSums* sums, GradientClip* clip) {
  double total;
  if (GridSum<kBlock>(Squares(gradients, size), sums, &total)) *clip = ClipOf(total, step->gradient_scale, options);
}

// The same.
__global__ void __launch_bounds__(kBlock)
    AddSquaresKernel(const float* __restrict__ gradients, int64_t size, GridSums* sums, double* sum) {
  double total;
  if (GridSum<kBlock>(Squares(gradients, size), sums, &total)) *sum += total;
}

// One thread. Bytes moved: 40. Bound by the launch.
__global__ void ClipKernel(const double* sum_of_squares, const DenseStepOptions* step, ClipOptions options,
                           GradientClip* clip) {
  *clip = ClipOf(*sum_of_squares, step->gradient_scale, options);
}

}  // namespace

void GradientNormGpu(const float* gradients, int64_t size, const DenseStepOptions* step, const ClipOptions& options,
                     GridSums* sums, GradientClip* clip, const Stream& stream) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(gradients) % 16, 0u);
  const Operation operation([&] { return OperationCost{.name = "norm of gradients", .bytes = 4.0 * size}; });
  Launch(GradientNormKernel, GridSumBlocks(size / 4 / kUnroll, kBlock), kBlock, stream, gradients, size, step, options,
         sums, clip);
}

void AddSquaresGpu(const float* gradients, int64_t size, GridSums* sums, double* sum, const Stream& stream) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(gradients) % 16, 0u);
  const Operation operation([&] { return OperationCost{.name = "norm of gradients", .bytes = 4.0 * size}; });
  Launch(AddSquaresKernel, GridSumBlocks(size / 4 / kUnroll, kBlock), kBlock, stream, gradients, size, sums, sum);
}

void ClipGpu(const double* sum_of_squares, const DenseStepOptions* step, const ClipOptions& options, GradientClip* clip,
             const Stream& stream) {
  const Operation operation([] { return OperationCost{.name = "clipping", .bytes = 40}; });
  Launch(ClipKernel, 1, 1, stream, sum_of_squares, step, options, clip);
}

}  // namespace sparrow
