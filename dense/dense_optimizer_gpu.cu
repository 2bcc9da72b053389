#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/dense_optimizer_gpu.h"

namespace sparrow {
namespace {

using Kind = DenseOptimizerKind;

constexpr int kBlock = 256;
constexpr int kBlocksPerMultiprocessor = 4;  // At least; leaves 64 registers a thread.
constexpr int kUnroll = 2;                   // Vectors of four elements a thread.

struct Arguments {
  DenseRule rule;
  DenseOptimizerGpu::StepArguments step;
  int64_t size;
  float* first;
  float* second;
  DenseProgress* progress;
};

template <WeightCopy kCopy>
__device__ uint16_t Rounded(float value) {
  if constexpr (kCopy == WeightCopy::kBfloat16) return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  return __half_as_ushort(__float2half_rn(value));
}

// Those of element i.
__device__ DenseScalars ScalarsAt(DenseScalars scalars, int64_t i, int64_t decayed) {
  if (i < decayed) return scalars;
  scalars.weight_decay = 0;
  scalars.keep = 1;
  return scalars;
}

// What a thread holds of each array: vector `begin` and those kBlock, 2 kBlock, ... vectors further on.
template <Kind kKind, WeightCopy kCopy>
class Piece {
 public:
  __device__ void LoadGradients(const Arguments& a, int64_t begin) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = begin + u * kBlock;
      if (i < a.size / 4) gradients_[u] = reinterpret_cast<const float4*>(a.step.gradients)[i];
    }
  }

  __device__ void LoadWeights(const Arguments& a, int64_t begin) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = begin + u * kBlock;
      if (i >= a.size / 4) continue;
      weights_[u] = reinterpret_cast<const float4*>(a.step.weights)[i];
      if constexpr (kStates > 0) first_[u] = reinterpret_cast<const float4*>(a.first)[i];
      if constexpr (kStates > 1) second_[u] = reinterpret_cast<const float4*>(a.second)[i];
    }
  }

  __device__ void Update(const Arguments& a, int64_t begin, const DenseScalars& scalars) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = 4 * (begin + u * kBlock);
      const auto s = [&](int e) { return ScalarsAt(scalars, i + e, a.step.decayed); };
      UpdateElement<kKind>(s(0), gradients_[u].x, weights_[u].x, first_[u].x, second_[u].x);
      UpdateElement<kKind>(s(1), gradients_[u].y, weights_[u].y, first_[u].y, second_[u].y);
      UpdateElement<kKind>(s(2), gradients_[u].z, weights_[u].z, first_[u].z, second_[u].z);
      UpdateElement<kKind>(s(3), gradients_[u].w, weights_[u].w, first_[u].w, second_[u].w);
    }
  }

  __device__ void Store(const Arguments& a, int64_t begin) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = begin + u * kBlock;
      if (i >= a.size / 4) continue;
      const float4 w = weights_[u];
      reinterpret_cast<float4*>(a.step.weights)[i] = w;
      if constexpr (kStates > 0) reinterpret_cast<float4*>(a.first)[i] = first_[u];
      if constexpr (kStates > 1) reinterpret_cast<float4*>(a.second)[i] = second_[u];
      if constexpr (kCopy != WeightCopy::kNone) {
        reinterpret_cast<ushort4*>(a.step.copy)[i] =
            make_ushort4(Rounded<kCopy>(w.x), Rounded<kCopy>(w.y), Rounded<kCopy>(w.z), Rounded<kCopy>(w.w));
      }
    }
  }

 private:
  static constexpr int kStates = DenseStates(kKind);
  float4 gradients_[kUnroll] = {}, weights_[kUnroll] = {}, first_[kUnroll] = {}, second_[kUnroll] = {};
};

// A block takes kUnroll * kBlock consecutive vectors of four elements, its threads one each in turn; the last size % 4
// elements are the first block's. Bytes moved: 12 an element for SGD (gradient and weight read, weight written), 8 more
// for each state, 2 more for a copy. Bound by HBM.
//
// The block that starts last counts the update and prepares the next one's bias corrections: by then all blocks have
// read this one's.
template <Kind kKind, WeightCopy kCopy>
__global__ void __launch_bounds__(kBlock, kBlocksPerMultiprocessor) StepKernel(Arguments a) {
  constexpr int kStates = DenseStates(kKind);
  __shared__ DenseScalars shared_scalars;
  __shared__ bool shared_skip;
  const int64_t vectors = a.size / 4;
  const int64_t begin = int64_t{blockIdx.x} * kBlock * kUnroll + threadIdx.x;
  Piece<kKind, kCopy> piece;
  // Before the barrier, so that the memory works meanwhile.
  if (!a.step.weights_ready) WaitForPrevious();
  piece.LoadWeights(a, begin);
  WaitForPrevious();
  piece.LoadGradients(a, begin);

  if (threadIdx.x == 0) {
    DenseStepOptions options = *a.step.options;
    const bool finite =
        std::isfinite(options.gradient_scale) && (a.step.clip == nullptr || std::isfinite(a.step.clip->norm));
    shared_skip = a.step.skip_unless_finite && !finite;
    if (a.step.clip != nullptr) options.gradient_scale *= a.step.clip->scale;
    shared_scalars = ScalarsOf(a.rule, options, a.progress->corrections);
  }
  __syncthreads();
  if (shared_skip) return;
  if (threadIdx.x == 0) {
    __threadfence();  // Progress has been read before this block is counted.
    if (atomicInc(&a.progress->started, gridDim.x - 1) == gridDim.x - 1) {
      const uint64_t updates = a.progress->updates + 1;
      a.progress->updates = updates;
      a.progress->corrections = CorrectionsOf(a.rule, updates + 1);
    }
  }
  const DenseScalars scalars = shared_scalars;

  piece.Update(a, begin, scalars);
  piece.Store(a, begin);
  if (blockIdx.x == 0 && threadIdx.x < a.size % 4) {
    const int64_t i = vectors * 4 + threadIdx.x;
    float none = 0;
    float& first = kStates > 0 ? a.first[i] : none;
    float& second = kStates > 1 ? a.second[i] : none;
    UpdateElement<kKind>(ScalarsAt(scalars, i, a.step.decayed), a.step.gradients[i], a.step.weights[i], first, second);
    if constexpr (kCopy != WeightCopy::kNone) a.step.copy[i] = Rounded<kCopy>(a.step.weights[i]);
  }
}

// One thread. Bytes moved: a DenseProgress, 32. Bound by the launch.
__global__ void SetUpdatesKernel(DenseRule rule, uint64_t updates, DenseProgress* progress) {
  *progress = {.updates = updates, .corrections = CorrectionsOf(rule, updates + 1), .started = 0};
}

// One thread an element. Bytes moved: 4 an element. Bound by HBM.
__global__ void __launch_bounds__(kBlock) FillKernel(float value, int64_t size, float* values) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < size) values[i] = value;
}

template <Kind kKind>
void LaunchStep(const Arguments& a, const Stream& stream) {
  // At least one block, which counts the update.
  const int64_t grid = std::max<int64_t>(1, (a.size / 4 + kBlock * kUnroll - 1) / (kBlock * kUnroll));
  switch (a.step.copy_type) {
    case WeightCopy::kNone:
      return LaunchEarly(StepKernel<kKind, WeightCopy::kNone>, grid, kBlock, stream, a);
    case WeightCopy::kBfloat16:
      return LaunchEarly(StepKernel<kKind, WeightCopy::kBfloat16>, grid, kBlock, stream, a);
    case WeightCopy::kFloat16:
      return LaunchEarly(StepKernel<kKind, WeightCopy::kFloat16>, grid, kBlock, stream, a);
  }
}

bool IsAligned(const void* pointer, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

}  // namespace

std::optional<DenseOptimizerGpu> DenseOptimizerGpu::Make(const DenseRule& rule, int64_t size, const Stream& stream) {
  CHECK(rule.kind != Kind::kLamb);
  std::vector<DeviceBuffer<float>> states;
  for (int i = 0; i < DenseStates(rule.kind); ++i) {
    std::optional<DeviceBuffer<float>> state = DeviceBuffer<float>::Allocate(size);
    if (!state.has_value()) return std::nullopt;
    states.push_back(std::move(*state));
  }
  std::optional<DeviceBuffer<DenseProgress>> progress = DeviceBuffer<DenseProgress>::Allocate(1);
  if (!progress.has_value()) return std::nullopt;
  DenseOptimizerGpu optimizer(rule, size, std::move(states), std::move(*progress));
  optimizer.Reset(stream);
  return optimizer;
}

void DenseOptimizerGpu::Reset(const Stream& stream) {
  for (DeviceBuffer<float>& state : states_) {
    const Operation operation([&] { return OperationCost{.name = "fill", .bytes = 4.0 * size_}; });
    Launch(FillKernel, (size_ + kBlock - 1) / kBlock, kBlock, stream, InitialDenseState(rule_), size_, state.data());
  }
  SetUpdates(0, stream);
}

void DenseOptimizerGpu::Step(const StepArguments& arguments, const Stream& stream) {
  CHECK(arguments.options != nullptr);
  CHECK(arguments.copy_type == WeightCopy::kNone || arguments.copy != nullptr || size_ == 0);
  CHECK(IsAligned(arguments.weights, 16) && IsAligned(arguments.gradients, 16) && IsAligned(arguments.copy, 8));
  const Arguments a{.rule = rule_,
                    .step = arguments,
                    .size = size_,
                    .first = states_.size() > 0 ? states_[0].data() : nullptr,
                    .second = states_.size() > 1 ? states_[1].data() : nullptr,
                    .progress = progress_.data()};
  const Operation operation([&] {
    return OperationCost{
        .name = "dense optimizer",
        .bytes = (12.0 + 8 * DenseStates(rule_.kind) + (a.step.copy_type == WeightCopy::kNone ? 0 : 2)) * size_};
  });
  switch (rule_.kind) {
    case Kind::kSgd:
      return LaunchStep<Kind::kSgd>(a, stream);
    case Kind::kMomentum:
      return LaunchStep<Kind::kMomentum>(a, stream);
    case Kind::kAdagrad:
      return LaunchStep<Kind::kAdagrad>(a, stream);
    case Kind::kAdam:
      return LaunchStep<Kind::kAdam>(a, stream);
    case Kind::kLamb:
      CHECK(false);  // Make has refused it.
  }
}

void DenseOptimizerGpu::CopyUpdatesTo(uint64_t* updates, const Stream& stream) const {
  internal::CopyToHost(updates, &progress_.data()->updates, sizeof(*updates), stream);
}

void DenseOptimizerGpu::SetUpdates(uint64_t updates, const Stream& stream) {
  const Operation operation([&] { return OperationCost{.name = "number of updates", .bytes = sizeof(DenseProgress)}; });
  Launch(SetUpdatesKernel, 1, 1, stream, rule_, updates, progress_.data());
}

}  // namespace sparrow
