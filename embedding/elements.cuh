#ifndef SPARROW_EMBEDDING_ELEMENTS_CUH_
#define SPARROW_EMBEDDING_ELEMENTS_CUH_

// One or four numbers of an ElementType as they lie in memory, and as floats. To 16 bits numbers are rounded to the
// nearest, and to an infinity where the type's range does not hold them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "embedding/element_type.h"

namespace sparrow {

// A float, 16 bits, or four of either.
template <ElementType kType, uint32_t kWidth>
using Packed = std::conditional_t<kType == ElementType::kFloat32, std::conditional_t<kWidth == 4, float4, float>,
                                  std::conditional_t<kWidth == 4, uint2, uint16_t>>;

template <ElementType kType, uint32_t kWidth>
__device__ void Unpack(const Packed<kType, kWidth>& packed, float* to /*[kWidth]*/) {
  static_assert(sizeof(packed) == kWidth * (kType == ElementType::kFloat32 ? 4 : 2));
#pragma unroll
  for (uint32_t e = 0; e < kWidth; ++e) {
    if constexpr (kType == ElementType::kFloat32) {
      to[e] = reinterpret_cast<const float*>(&packed)[e];
    } else if constexpr (kType == ElementType::kBfloat16) {
      to[e] = __uint_as_float(uint32_t{reinterpret_cast<const uint16_t*>(&packed)[e]} << 16);
    } else {
      to[e] = __half2float(__ushort_as_half(reinterpret_cast<const uint16_t*>(&packed)[e]));
    }
  }
}

template <ElementType kType, uint32_t kWidth>
__device__ Packed<kType, kWidth> Pack(const float* from /*[kWidth]*/) {
  Packed<kType, kWidth> packed;
#pragma unroll
  for (uint32_t e = 0; e < kWidth; ++e) {
    if constexpr (kType == ElementType::kFloat32) {
      reinterpret_cast<float*>(&packed)[e] = from[e];
    } else if constexpr (kType == ElementType::kBfloat16) {
      reinterpret_cast<uint16_t*>(&packed)[e] = __bfloat16_as_ushort(__float2bfloat16_rn(from[e]));
    } else {
      reinterpret_cast<uint16_t*>(&packed)[e] = __half_as_ushort(__float2half_rn(from[e]));
    }
  }
  return packed;
}

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ELEMENTS_CUH_
