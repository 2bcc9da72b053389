#ifndef SPARROW_DENSE_PRECISION_CUH_
#define SPARROW_DENSE_PRECISION_CUH_

// The types that a Precision (dense/device_matrix.h) stands for, and how kernels read and write them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "dense/device_matrix.h"

namespace sparrow {

// call(T{}) with the type of the elements.
template <typename Call>
void WithElementType(Precision precision, Call call) {
  switch (precision) {
    case Precision::kFloat32:
    case Precision::kTf32:
      return call(float{});
    case Precision::kBfloat16:
      return call(__nv_bfloat16{});
    case Precision::kFloat16:
      return call(__half{});
  }
}

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__half x) { return __half2float(x); }

// To the nearest, ties to even.
template <typename T>
__device__ inline T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// Two 16-bit numbers as the tensor cores take them: the first in the low half.
__device__ inline uint32_t PairOf(__nv_bfloat16 low, __nv_bfloat16 high) {
  return uint32_t{__bfloat16_as_ushort(high)} << 16 | __bfloat16_as_ushort(low);
}
__device__ inline uint32_t PairOf(__half low, __half high) {
  return uint32_t{__half_as_ushort(high)} << 16 | __half_as_ushort(low);
}
template <typename T>
__device__ inline uint32_t RoundedPair(float low, float high) {
  return PairOf(FromFloat<T>(low), FromFloat<T>(high));
}

// kCount elements, 4, 8 or 16 bytes, that are read or written by one access.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T)) Pack {
  T values[kCount];
};

// *to = pack, in GPU memory. Said in PTX, since the compiler takes some such stores apart into single elements.
template <typename T, int kCount>
__device__ inline void Store(void* to, const Pack<T, kCount>& pack) {
  if constexpr (sizeof(pack) == 16) {
    uint32_t v[4];
    memcpy(v, &pack, sizeof(v));
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
  } else if constexpr (sizeof(pack) == 8) {
    uint32_t v[2];
    memcpy(v, &pack, sizeof(v));
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(v[0]), "r"(v[1]) : "memory");
  } else {
    *static_cast<Pack<T, kCount>*>(to) = pack;
  }
}

// How many of them are 16 bytes.
template <typename T>
constexpr int kWidth = 16 / sizeof(T);

inline bool IsAligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Every row begins at a multiple of 16 bytes.
template <typename T>
bool HasAlignedRows(const DeviceMatrix& matrix) {
  return IsAligned16(matrix.data) && matrix.stride % kWidth<T> == 0;
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_PRECISION_CUH_
