#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/bce_loss.h"
#include "dense/bce_loss_gpu.h"
#include "dense/grid_sum.cuh"

namespace sparrow {
namespace {

constexpr int kBlock = 256;

// Thread t of the grid takes samples t, t + threads, ... Bytes moved: 12 a sample (logit, label, gradient). Batches up
// to 65,536 are over within a few microseconds, which are latency; millions of samples are bound by the exponential and
// the logarithm in double precision, not by HBM.
__global__ void __launch_bounds__(kBlock)
    BceWithLogitsKernel(const float* __restrict__ logits, const float* __restrict__ labels, int64_t n,
                        float* __restrict__ logit_gradients, double* loss_sum, GridSums* sums) {
  double sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x; i < n; i += int64_t{gridDim.x} * kBlock) {
    const BceTerm term = BceTermOf(logits[i], labels[i]);
    logit_gradients[i] = term.gradient;
    sum += term.loss;
  }
  double total;
  if (GridSum<kBlock>(sum, sums, &total)) *loss_sum = total;
}

}  // namespace

void BceWithLogitsGpu(const float* logits, const float* labels, int64_t n, float* logit_gradients, double* loss_sum,
                      GridSums* sums, const Stream& stream) {
  const Operation operation([&] { return OperationCost{.name = "loss", .bytes = 12.0 * n}; });
  Launch(BceWithLogitsKernel, GridSumBlocks(n, kBlock), kBlock, stream, logits, labels, n, logit_gradients, loss_sum,
         sums);
}

}  // namespace sparrow
