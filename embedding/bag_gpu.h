#ifndef SPARROW_EMBEDDING_BAG_GPU_H_
#define SPARROW_EMBEDDING_BAG_GPU_H_

// The CUDA half of embedding/bag.h: pooling of bags of rows that lie in GPU memory. Needs CUDA and base/cuda only.

#include <cstdint>

#include "base/cuda/stream.h"

namespace sparrow {

// embedding/bag.h Bags with its arrays in GPU memory. CheckBags must have passed on the host.
struct DeviceBags {
  const uint32_t* offsets = nullptr;  // [rows + 1]
  const uint32_t* index = nullptr;    // [lookups]
  const float* weights = nullptr;     // [lookups], or nullptr: all 1.
  int64_t rows = 0;
  bool mean = false;
};

// As BagForwardCpu: output[i, column ... column + dim) = pooled rows of bag i. Bags are summed in their order, so the
// result equals the CPU's but for fused multiply-add. Queued on `stream`. rows and output are GPU memory.
void BagForwardGpu(const DeviceBags& bags, const float* rows /*[unique, dim]*/, uint32_t dim,
                   float* output /*[rows, stride]*/, uint32_t stride, uint32_t column, const Stream& queue);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_BAG_GPU_H_
