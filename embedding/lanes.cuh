#ifndef SPARROW_EMBEDDING_LANES_CUH_
#define SPARROW_EMBEDDING_LANES_CUH_

// How groups of lanes of a warp share rows: what a lane owns of one, sums of gradients, means of squares.

#include <cstdint>

#include "base/cuda/launch.cuh"
#include "embedding/bag_gpu.h"
#include "embedding/elements.cuh"

namespace sparrow {

// What one lane of a group of kLanes owns of a row, kElements of it at a time: kVectors vectors of kWidth elements (1
// or 4), kStride apart. kWholeRow: rows have no more than these kElements.
template <uint32_t kWidthOfVector, uint32_t kLaneCount, uint32_t kVectorCount, bool kWholeRow>
struct Lane {
  static constexpr uint32_t kLanes = kLaneCount;
  static constexpr uint32_t kVectors = kVectorCount;
  static constexpr uint32_t kWidth = kWidthOfVector;
  static constexpr uint32_t kStride = kLanes * kWidth;
  static constexpr uint32_t kOwn = kVectors * kWidth;
  static constexpr uint32_t kElements = kLanes * kOwn;

  // Where the loop over a row's elements ends, kElements at a time.
  __device__ static uint32_t End(uint32_t dim) { return kWholeRow ? kElements : dim; }
  __device__ static uint32_t lane() { return threadIdx.x % kLanes; }
  __device__ static uint32_t Mask() { return 0xffffffff >> (32 - kLanes) << (threadIdx.x % 32 / kLanes * kLanes); }

  // Elements base ... base + kElements of an array of dim elements; 0 behind it.
  template <ElementType kType>
  __device__ static void LoadPacked(const Packed<kType, 1>* from, uint32_t base, uint32_t dim,
                                    Packed<kType, kWidth>* own /*[kVectors]*/) {
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      const uint32_t column = base + i * kStride + lane() * kWidth;
      own[i] = {};
      if (column < dim) own[i] = *reinterpret_cast<const Packed<kType, kWidth>*>(from + column);
    }
  }
  __device__ static void Load(const float* from, uint32_t base, uint32_t dim, float* own /*[kOwn]*/) {
    Packed<ElementType::kFloat32, kWidth> packed[kVectors];
    LoadPacked<ElementType::kFloat32>(from, base, dim, packed);
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) Unpack<ElementType::kFloat32, kWidth>(packed[i], own + i * kWidth);
  }
  __device__ static void Store(const float* own /*[kOwn]*/, uint32_t base, uint32_t dim, float* to) {
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      const uint32_t column = base + i * kStride + lane() * kWidth;
      using Vector = Packed<ElementType::kFloat32, kWidth>;
      if (column < dim) *reinterpret_cast<Vector*>(to + column) = Pack<ElementType::kFloat32, kWidth>(own + i * kWidth);
    }
  }
};

// Has the lines of [begin, begin + bytes), as many as the group has lanes, brought into L2.
template <typename L>
__device__ void Prefetch(const void* begin, uint64_t bytes) {
  constexpr uint64_t kLine = 128;
  const auto from = reinterpret_cast<uint64_t>(begin);
  const uint64_t line = from / kLine * kLine + L::lane() * kLine;
  if (line < from + bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

// Begins to copy 8 or 16 bytes, at a multiple of as many, from GPU memory into shared memory, without a register.
template <uint32_t kBytes>
__device__ void CopyAhead(void* shared, const void* from) {
  static_assert(kBytes == 8 || kBytes == 16);
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
  }
}
// Makes a batch of what the thread has begun since the last batch.
__device__ inline void EndBatchAhead() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all of the thread's batches but the last one.
__device__ inline void AwaitBatchBeforeLast() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// A look-up whose gradient is to be summed.
struct Staged {
  uint64_t offset;  // Of the gradient: elements.
  float factor;
};

// The lane's elements of the sum of `count` look-ups, which are at least one. Loads of kBatch of them are under way
// together.
template <typename L, uint32_t kBatch, ElementType kType>
__device__ void SumLookupsOf(const void* gradients, const Staged* staged, uint32_t count, uint32_t base, uint32_t dim,
                             float* sum /*[L::kOwn]*/) {
#pragma unroll
  for (uint32_t e = 0; e < L::kOwn; ++e) sum[e] = 0;
  for (uint32_t i = 0; i < count; i += kBatch) {
    Packed<kType, L::kWidth> packed[kBatch][L::kVectors];
    float factors[kBatch];
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      const Staged lookup = staged[min(i + u, count - 1)];
      factors[u] = lookup.factor;
      L::template LoadPacked<kType>(static_cast<const Packed<kType, 1>*>(gradients) + lookup.offset, base,
                                    i + u < count ? dim : 0, packed[u]);  // 0 behind the last one.
    }
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      float values[L::kOwn];
#pragma unroll
      for (uint32_t v = 0; v < L::kVectors; ++v) Unpack<kType, L::kWidth>(packed[u][v], values + v * L::kWidth);
#pragma unroll
      for (uint32_t e = 0; e < L::kOwn; ++e) sum[e] += factors[u] * values[e];
    }
  }
}

template <typename L, uint32_t kBatch>
__device__ void SumLookups(const DevicePooled& gradients, const Staged* staged, uint32_t count, uint32_t base,
                           uint32_t dim, float* sum) {
  switch (gradients.type) {
    case ElementType::kFloat32:
      return SumLookupsOf<L, kBatch, ElementType::kFloat32>(gradients.values, staged, count, base, dim, sum);
    case ElementType::kBfloat16:
      return SumLookupsOf<L, kBatch, ElementType::kBfloat16>(gradients.values, staged, count, base, dim, sum);
    case ElementType::kFloat16:
      return SumLookupsOf<L, kBatch, ElementType::kFloat16>(gradients.values, staged, count, base, dim, sum);
  }
}

// MeanSquare (embedding/optimizer.h), bit for bit, by a group. gradient(base, own) gives the lane's elements, which
// are handed over in `scratch`; `own` keeps the last ones.
template <typename L, typename Gradient>
__device__ double GroupMeanSquare(uint32_t dim, float scale, float* scratch /*[L::kElements]*/,
                                  const Gradient& gradient, float* own) {
  constexpr uint32_t kSums = 16;
  constexpr uint32_t kLanes = L::kLanes;
  constexpr uint32_t kLaneSums = kLanes >= kSums ? 1 : kSums / kLanes;  // Sums lane, lane + kLanes, ...
  double sums[kLaneSums] = {};
  for (uint32_t base = 0; base < L::End(dim); base += L::kElements) {
    gradient(base, own);
    const uint32_t elements = min(L::kElements, dim - base);
    __syncwarp(L::Mask());
    L::Store(own, 0, elements, scratch);
    __syncwarp(L::Mask());
#pragma unroll
    for (uint32_t i = 0; i < kLaneSums; ++i) {
      for (uint32_t k = (L::lane() + i * kLanes) % kSums; k < elements; k += kSums) {
        const double g = scratch[k] * scale;
        sums[i] += g * g;
      }
    }
  }
#pragma unroll
  for (uint32_t width = kSums / 2; width > 0; width /= 2) {
    if (width >= kLanes) {
#pragma unroll
      for (uint32_t i = 0; i < width / kLanes; ++i) sums[i] += sums[(i + width / kLanes) % kLaneSums];
    } else {
      sums[0] += __shfl_down_sync(L::Mask(), sums[0], width, kLanes);
    }
  }
  const double sum = __shfl_sync(L::Mask(), sums[0], 0, kLanes);
  if ((dim & (dim - 1)) != 0) return sum / dim;
  return sum * __hiloint2double((1023 - (31 - __clz(dim))) << 20, 0);  // 1 / dim: the same, sooner.
}

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_LANES_CUH_
