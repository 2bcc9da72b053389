#ifndef SPARROW_DENSE_ROW_PACKS_CUH_
#define SPARROW_DENSE_ROW_PACKS_CUH_

// Reading and writing matrices of every precision 16 bytes at a time, a pack, as floats or as they are.

#include <cstdint>
#include <cstring>

#include "dense/device_matrix.h"
#include "dense/dropout.h"
#include "dense/precision.cuh"

namespace sparrow {

// Elements as they lie in memory, in four registers.
template <typename T>
using RowPack = Pack<T, kWidth<T>>;

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
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    memcpy(&pack, &bits, sizeof(pack));
  } else {
#pragma unroll
    for (int e = 0; e < kWidth<T>; ++e) pack.values[e] = e < left ? from[e] : FromFloat<T>(0.0f);
  }
  return pack;
}

template <bool kWhole, typename T>
__device__ inline void WritePack(T* to, int64_t left, const RowPack<T>& pack) {
  if constexpr (kWhole) {
    Store(to, pack);
  } else {
#pragma unroll
    for (int e = 0; e < kWidth<T>; ++e) {
      if (e < left) to[e] = pack.values[e];
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
