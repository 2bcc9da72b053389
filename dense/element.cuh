#ifndef SPARROW_DENSE_ELEMENT_CUH_
#define SPARROW_DENSE_ELEMENT_CUH_

// The element types of a Precision, in kernels: computed in float, rounded to the nearest (ties to even) when stored.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "dense/device_matrix.h"

namespace sparrow {

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float ToFloat(__half value) { return __half2float(value); }

template <typename T>
__device__ T FromFloat(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}

// Eight elements that are loaded and stored as one or two 16-byte pieces.
template <typename T>
struct alignas(16) Eight {
  T at[8];
};

// Calls body with an object of the precision's element type.
template <typename Body>
void WithElementOf(Precision precision, const Body& body) {
  switch (precision) {
    case Precision::kFloat32:
    case Precision::kTf32:
      return body(float{});
    case Precision::kBfloat16:
      return body(__nv_bfloat16{});
    case Precision::kFloat16:
      return body(__half{});
  }
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_ELEMENT_CUH_
