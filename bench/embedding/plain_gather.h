#ifndef SPARROW_BENCH_EMBEDDING_PLAIN_GATHER_H_
#define SPARROW_BENCH_EMBEDDING_PLAIN_GATHER_H_

#include <cstdint>

#include "base/cuda/stream.h"
#include "embedding/bag_gpu.h"

namespace sparrow {

// output[i, :] = row index[i]: what pooling of rows is compared with. REQUIRES: rows.dim is a multiple of 4; output at
// a multiple of 16.
void PlainGather(const uint32_t* index /*[n]*/, uint32_t n, const DeviceRows& rows, float* output /*[n, rows.dim]*/,
                 const Stream& queue);

}  // namespace sparrow

#endif  // SPARROW_BENCH_EMBEDDING_PLAIN_GATHER_H_
