#ifndef SPARROW_DENSE_ROW_PACKS_CUH_
#define SPARROW_DENSE_ROW_PACKS_CUH_

// Reading and writing matrices of every precision 16 bytes at a time, a pack, as floats or as they are.

#include <cstdint>
#include <cstring>

#include "dense/device_matrix.h"
#include "dense/dropout.h"
#include "dense/precision.cuh"

namespace sparrow {

// The kWidth<T> elements of 16 bytes as they lie in memory: four registers. (An array of 16-bit elements takes eight.)
template <typename T>
struct alignas(16) RowPack {
  uint32_t bits[4];

  // REQUIRES: e is known when this is compiled.
  __device__ float At(int e) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(bits[e]);
    } else {
      return HalfAt(T{}, bits[e / 2], e % 2 != 0);
    }
  }
  // Each rounded once, to the nearest, ties to even.
  __device__ static RowPack Of(const float (&values)[kWidth<T>]) {
    RowPack pack;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        pack.bits[i] = __float_as_uint(values[i]);
      } else {
        pack.bits[i] = PairOfFloats(T{}, values[2 * i], values[2 * i + 1]);
      }
    }
    return pack;
  }
  // Makes the compiler take the elements out of the pack again, rather than keep them all as floats, for which there
  // are not enough registers.
  __device__ void Forget() {
#pragma unroll
    for (uint32_t& four_bytes : bits) asm volatile("" : "+r"(four_bytes));
  }

 private:
  __device__ static float HalfAt(__nv_bfloat16, uint32_t pair, bool high) {
    return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
  }
  __device__ static float HalfAt(__half, uint32_t pair, bool high) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(high ? pair >> 16 : pair)));
  }
  // Both by one instruction.
  __device__ static uint32_t PairOfFloats(__nv_bfloat16, float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t both;
    memcpy(&both, &pair, sizeof(both));
    return both;
  }
  __device__ static uint32_t PairOfFloats(__half, float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t both;
    memcpy(&both, &pair, sizeof(both));
    return both;
  }
};

// Whether a matrix's rows are packs, each whole and at a multiple of 16 bytes.
template <typename T>
bool HasWholePacks(const DeviceMatrix& matrix) {
  return HasAlignedRows<T>(matrix) && matrix.cols % kWidth<T> == 0;
}

template <typename T>
__host__ __device__ constexpr int64_t PacksOf(int64_t cols) {
  return (cols + kWidth<T> - 1) / kWidth<T>;
}

template <typename T>
__device__ inline T* ElementAt(const DeviceMatrix& matrix, int64_t row, int64_t column) {
  return static_cast<T*>(matrix.data) + row * matrix.stride + column;
}

// The pack at `from`, of which `left` elements are there; the others are 0. kWhole: they all are, at a multiple of 16
// bytes.
template <bool kWhole, typename T>
__device__ inline RowPack<T> ReadPack(const T* from, int64_t left) {
  RowPack<T> pack;
  if constexpr (kWhole) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    pack.bits[0] = four.x, pack.bits[1] = four.y, pack.bits[2] = four.z, pack.bits[3] = four.w;
  } else {
    float values[kWidth<T>];
#pragma unroll
    for (int e = 0; e < kWidth<T>; ++e) values[e] = e < left ? ToFloat(from[e]) : 0.0f;
    pack = RowPack<T>::Of(values);
  }
  return pack;
}

template <bool kWhole, typename T>
__device__ inline void WritePack(T* to, int64_t left, const RowPack<T>& pack) {
  if constexpr (kWhole) {
    *reinterpret_cast<uint4*>(to) = {pack.bits[0], pack.bits[1], pack.bits[2], pack.bits[3]};
  } else {
#pragma unroll
    for (int e = 0; e < kWidth<T>; ++e) {
      if (e < left) to[e] = FromFloat<T>(pack.At(e));
    }
  }
}

// A pack of elements that are `first` + their index's number of a mask, each times its factor.
template <typename T>
__device__ inline void Drop(const Dropout& mask, uint64_t first, float (&values)[kWidth<T>]) {
#pragma unroll
  for (int e = 0; e < kWidth<T>; ++e) values[e] *= mask.Factor(first + static_cast<uint64_t>(e));
}

}  // namespace sparrow

#endif  // SPARROW_DENSE_ROW_PACKS_CUH_
