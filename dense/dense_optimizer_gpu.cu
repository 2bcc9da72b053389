#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/grid_sum.cuh"

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

// What all elements of the step share; false: it is to change nothing. By one thread.
__device__ bool ReadStep(const Arguments& a, DenseScalars* scalars) {
  DenseStepOptions options = *a.step.options;
  const bool finite =
      std::isfinite(options.gradient_scale) && (a.step.clip == nullptr || std::isfinite(a.step.clip->norm));
  if (a.step.clip != nullptr) options.gradient_scale *= a.step.clip->scale;
  *scalars = ScalarsOf(a.rule, options, a.progress->corrections);
  return finite || !a.step.skip_unless_finite;
}

// By one thread of each block of the step's last kernel, when the block has read the progress. The block that starts
// last counts the update and prepares the next one's bias corrections: by then all blocks have read this one's.
__device__ void CountUpdate(const Arguments& a) {
  __threadfence();  // Progress has been read before this block is counted.
  if (atomicInc(&a.progress->started, gridDim.x - 1) != gridDim.x - 1) return;
  const uint64_t updates = a.progress->updates + 1;
  a.progress->updates = updates;
  a.progress->corrections = CorrectionsOf(a.rule, updates + 1);
}

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

  if (threadIdx.x == 0) shared_skip = !ReadStep(a, &shared_scalars);
  __syncthreads();
  if (shared_skip) return;
  if (threadIdx.x == 0) CountUpdate(a);
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

// LAMB: a block takes a range, its threads one vector of four elements each in turn, kUnroll at a time. Where the range
// has only some of a vector's elements, the others are neither read nor written.
struct LambArguments {
  Arguments common;
  const LambRange* ranges;
  LambTensor* tensors;
  LambSums* range_sums;
  LambSums* sums;  // [tensors]
};

constexpr int64_t kRange = 8192;  // Elements of a range, at most.

__device__ bool IsWhole(const LambRange& range, int64_t i) { return i >= range.begin && i + 4 <= range.end; }
__device__ bool Has(const LambRange& range, int64_t i) { return i >= range.begin && i < range.end; }

// Elements i to i + 4 of an array, those outside the range being 0.
__device__ float4 LoadFour(const float* from, int64_t i, const LambRange& range) {
  if (IsWhole(range, i)) return *reinterpret_cast<const float4*>(from + i);
  const auto at = [&](int64_t e) { return Has(range, e) ? from[e] : 0.0f; };
  return make_float4(at(i), at(i + 1), at(i + 2), at(i + 3));
}

__device__ void StoreFour(float4 values, float* to, int64_t i, const LambRange& range) {
  if (IsWhole(range, i)) {
    *reinterpret_cast<float4*>(to + i) = values;
    return;
  }
  const float each[] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (Has(range, i + e)) to[i + e] = each[e];
  }
}

template <WeightCopy kCopy>
__device__ void StoreRounded(float4 values, uint16_t* to, int64_t i, const LambRange& range) {
  const uint16_t each[] = {Rounded<kCopy>(values.x), Rounded<kCopy>(values.y), Rounded<kCopy>(values.z),
                           Rounded<kCopy>(values.w)};
  if (IsWhole(range, i)) {
    *reinterpret_cast<ushort4*>(to + i) = make_ushort4(each[0], each[1], each[2], each[3]);
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (Has(range, i + e)) to[i + e] = each[e];
  }
}

__device__ float4 LambDirections(const DenseScalars& s, float4 w, float4 m, float4 v) {
  return make_float4(LambDirection(s, w.x, m.x, v.x), LambDirection(s, w.y, m.y, v.y), LambDirection(s, w.z, m.z, v.z),
                     LambDirection(s, w.w, m.w, v.w));
}

__device__ double Squares(float4 values) {
  const auto square = [](float value) { return static_cast<double>(value) * value; };
  return (square(values.x) + square(values.y)) + (square(values.z) + square(values.w));
}

// m and v, and the sums of a tensor's squares: each block adds those of its range in a fixed tree, and the block that
// ends last of a tensor's adds the ranges', in their order. Bytes moved: 24 an element (all four arrays read, m and v
// written); of those that belong to no tensor 20. Bound by HBM.
__global__ void __launch_bounds__(kBlock, kBlocksPerMultiprocessor) LambMomentsKernel(LambArguments arguments) {
  __shared__ DenseScalars shared_scalars;
  __shared__ bool shared_skip;
  __shared__ bool last;
  const Arguments& a = arguments.common;
  const LambRange range = arguments.ranges[blockIdx.x];
  const bool summed = range.tensor >= 0;
  WaitForPrevious();
  if (threadIdx.x == 0) shared_skip = !ReadStep(a, &shared_scalars);
  __syncthreads();
  if (shared_skip) return;
  const DenseScalars s = shared_scalars;

  double weights = 0, directions = 0;
  for (int64_t begin = range.begin / 4 * 4 + 4 * threadIdx.x; begin < range.end; begin += 4 * kBlock * kUnroll) {
    float4 g[kUnroll], w[kUnroll], m[kUnroll], v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = begin + 4 * u * kBlock;
      g[u] = LoadFour(a.step.gradients, i, range);
      m[u] = LoadFour(a.first, i, range);
      v[u] = LoadFour(a.second, i, range);
      w[u] = summed ? LoadFour(a.step.weights, i, range) : float4{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = begin + 4 * u * kBlock;
      UpdateLambMoments(s, g[u].x, m[u].x, v[u].x);
      UpdateLambMoments(s, g[u].y, m[u].y, v[u].y);
      UpdateLambMoments(s, g[u].z, m[u].z, v[u].z);
      UpdateLambMoments(s, g[u].w, m[u].w, v[u].w);
      StoreFour(m[u], a.first, i, range);
      StoreFour(v[u], a.second, i, range);
      if (!summed) continue;
      weights += Squares(w[u]);
      directions += Squares(LambDirections(s, w[u], m[u], v[u]));
    }
  }
  if (!summed) return;

  const LambSums mine{.weights = BlockSum<kBlock>(weights), .directions = BlockSum<kBlock>(directions)};
  LambTensor* const tensor = &arguments.tensors[range.tensor];
  const int ranges = tensor->ranges;
  if (threadIdx.x == 0) {
    arguments.range_sums[blockIdx.x] = mine;
    __threadfence();  // The sums are seen before they are counted.
    last = atomicInc(&tensor->finished, ranges - 1) == ranges - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  weights = directions = 0;
  const LambSums* const sums = arguments.range_sums + tensor->first;
  for (int r = threadIdx.x; r < ranges; r += kBlock) {
    weights += __ldcg(&sums[r].weights);
    directions += __ldcg(&sums[r].directions);
  }
  const LambSums total{.weights = BlockSum<kBlock>(weights), .directions = BlockSum<kBlock>(directions)};
  if (threadIdx.x == 0) arguments.sums[range.tensor] = total;
}

// The new weights. Bytes moved: 16 an element (weight, m and v read, weight written), 2 more for a copy. Bound by HBM.
template <WeightCopy kCopy>
__global__ void __launch_bounds__(kBlock, kBlocksPerMultiprocessor) LambApplyKernel(LambArguments arguments) {
  __shared__ DenseScalars shared_scalars;
  __shared__ bool shared_skip;
  const Arguments& a = arguments.common;
  const LambRange range = arguments.ranges[blockIdx.x];
  WaitForPrevious();
  if (threadIdx.x == 0) {
    DenseScalars s;
    shared_skip = !ReadStep(a, &s);
    if (range.tensor < 0) {
      s.weight_decay = 0;
    } else {
      s.rate = LambRate(a.rule, *a.step.options, arguments.sums[range.tensor].weights,
                        arguments.sums[range.tensor].directions);
    }
    shared_scalars = s;
  }
  __syncthreads();
  if (shared_skip) return;
  if (threadIdx.x == 0) CountUpdate(a);
  const DenseScalars s = shared_scalars;

  for (int64_t begin = range.begin / 4 * 4 + 4 * threadIdx.x; begin < range.end; begin += 4 * kBlock * kUnroll) {
    float4 w[kUnroll], m[kUnroll], v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = begin + 4 * u * kBlock;
      w[u] = LoadFour(a.step.weights, i, range);
      m[u] = LoadFour(a.first, i, range);
      v[u] = LoadFour(a.second, i, range);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = begin + 4 * u * kBlock;
      const float4 direction = LambDirections(s, w[u], m[u], v[u]);
      w[u].x -= s.rate * direction.x;
      w[u].y -= s.rate * direction.y;
      w[u].z -= s.rate * direction.z;
      w[u].w -= s.rate * direction.w;
      StoreFour(w[u], a.step.weights, i, range);
      if constexpr (kCopy != WeightCopy::kNone) StoreRounded<kCopy>(w[u], a.step.copy, i, range);
    }
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

void LaunchLambApply(const LambArguments& a, int64_t grid, const Stream& stream) {
  switch (a.common.step.copy_type) {
    case WeightCopy::kNone:
      return LaunchEarly(LambApplyKernel<WeightCopy::kNone>, grid, kBlock, stream, a);
    case WeightCopy::kBfloat16:
      return LaunchEarly(LambApplyKernel<WeightCopy::kBfloat16>, grid, kBlock, stream, a);
    case WeightCopy::kFloat16:
      return LaunchEarly(LambApplyKernel<WeightCopy::kFloat16>, grid, kBlock, stream, a);
  }
}

// Ranges of a vector of `size` elements, in order, and which of them are a tensor's.
struct LambTables {
  std::vector<LambRange> ranges;
  std::vector<LambTensor> tensors;

  LambTables(int64_t size, std::span<const Slice> of) {
    int64_t done = 0;
    for (const Slice& tensor : of) {
      const int64_t begin = static_cast<int64_t>(tensor.begin), end = static_cast<int64_t>(tensor.end);
      CHECK(done <= begin && begin <= end && end <= size);
      Cut(done, begin, -1);
      const int32_t first = static_cast<int32_t>(ranges.size());
      Cut(begin, end, static_cast<int32_t>(tensors.size()));
      if (begin == end) ranges.push_back({begin, end, static_cast<int32_t>(tensors.size())});
      tensors.push_back({.first = first, .ranges = static_cast<int32_t>(ranges.size()) - first, .finished = 0});
      done = end;
    }
    Cut(done, size, -1);
    if (ranges.empty()) ranges.push_back({0, 0, -1});  // Its block counts the update.
  }

 private:
  void Cut(int64_t begin, int64_t end, int32_t tensor) {
    while (begin < end) {
      const int64_t to = std::min(end, (begin / kRange + 1) * kRange);  // So that most vectors are whole.
      ranges.push_back({begin, to, tensor});
      begin = to;
    }
  }
};

bool IsAligned(const void* pointer, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

}  // namespace

std::optional<DenseOptimizerGpu> DenseOptimizerGpu::Make(const DenseRule& rule, int64_t size, const Stream& stream,
                                                         std::span<const Slice> tensors) {
  std::vector<DeviceBuffer<float>> states;
  for (int i = 0; i < DenseStates(rule.kind); ++i) {
    std::optional<DeviceBuffer<float>> state = DeviceBuffer<float>::Allocate(size);
    if (!state.has_value()) return std::nullopt;
    states.push_back(std::move(*state));
  }
  const bool lamb = rule.kind == Kind::kLamb;
  const LambTables tables(lamb ? size : 0, lamb ? tensors : std::span<const Slice>());
  const size_t ranges = lamb ? tables.ranges.size() : 0;
  std::optional<DeviceBuffer<DenseProgress>> progress = DeviceBuffer<DenseProgress>::Allocate(1);
  std::optional<DeviceBuffer<LambRange>> device_ranges = DeviceBuffer<LambRange>::Allocate(ranges);
  std::optional<DeviceBuffer<LambTensor>> device_tensors = DeviceBuffer<LambTensor>::Allocate(tables.tensors.size());
  std::optional<DeviceBuffer<LambSums>> range_sums = DeviceBuffer<LambSums>::Allocate(ranges);
  std::optional<DeviceBuffer<LambSums>> sums = DeviceBuffer<LambSums>::Allocate(tables.tensors.size());
  if (!progress.has_value() || !device_ranges.has_value() || !device_tensors.has_value() || !range_sums.has_value() ||
      !sums.has_value()) {
    return std::nullopt;
  }
  if (lamb) {
    device_ranges->CopyFrom(tables.ranges, stream);
    device_tensors->CopyFrom(tables.tensors, stream);
    stream.Synchronize();  // The tables are this call's.
  }
  DenseOptimizerGpu optimizer(rule, size, std::move(states), std::move(*progress), std::move(*device_ranges),
                              std::move(*device_tensors), std::move(*range_sums), std::move(*sums));
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

namespace {

Arguments ArgumentsOf(const DenseRule& rule, const DenseOptimizerGpu::StepArguments& step, int64_t size,
                      std::vector<DeviceBuffer<float>>* states, DeviceBuffer<DenseProgress>* progress) {
  CHECK(step.options != nullptr);
  CHECK(step.copy_type == WeightCopy::kNone || step.copy != nullptr || size == 0);
  CHECK(IsAligned(step.weights, 16) && IsAligned(step.gradients, 16) && IsAligned(step.copy, 8));
  return {.rule = rule,
          .step = step,
          .size = size,
          .first = states->size() > 0 ? (*states)[0].data() : nullptr,
          .second = states->size() > 1 ? (*states)[1].data() : nullptr,
          .progress = progress->data()};
}

double CopyBytes(const Arguments& a) { return a.step.copy_type == WeightCopy::kNone ? 0 : 2; }

}  // namespace

std::span<LambSums> DenseOptimizerGpu::Begin(const StepArguments& arguments, const Stream& stream) {
  if (rule_.kind != Kind::kLamb) return {};
  const Operation operation([&] { return OperationCost{.name = "LAMB's moments", .bytes = 24.0 * size_}; });
  LaunchEarly(LambMomentsKernel, static_cast<int64_t>(ranges_.size()), kBlock, stream,
              LambArguments{.common = ArgumentsOf(rule_, arguments, size_, &states_, &progress_),
                            .ranges = ranges_.data(),
                            .tensors = tensors_.data(),
                            .range_sums = range_sums_.data(),
                            .sums = sums_.data()});
  return {sums_.data(), sums_.size()};
}

void DenseOptimizerGpu::End(const StepArguments& arguments, const Stream& stream) {
  const Arguments a = ArgumentsOf(rule_, arguments, size_, &states_, &progress_);
  if (rule_.kind == Kind::kLamb) {
    const Operation operation([&] { return OperationCost{.name = "LAMB", .bytes = (16 + CopyBytes(a)) * size_}; });
    return LaunchLambApply({.common = a,
                            .ranges = ranges_.data(),
                            .tensors = tensors_.data(),
                            .range_sums = range_sums_.data(),
                            .sums = sums_.data()},
                           static_cast<int64_t>(ranges_.size()), stream);
  }
  const Operation operation([&] {
    return OperationCost{.name = "dense optimizer", .bytes = (12 + 8 * DenseStates(rule_.kind) + CopyBytes(a)) * size_};
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
      return;  // Above.
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
