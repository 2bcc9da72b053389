#ifndef SPARROW_DENSE_ADD_FLOATS_H_
#define SPARROW_DENSE_ADD_FLOATS_H_

#include <cstdint>

#include "base/cuda/stream.h"

namespace sparrow {

// to[i] += values[i]. Both are GPU memory, aligned to 16 bytes. Queued on `stream`; a graph can record it. Needs CUDA
// and base/cuda only.
void AddFloatsGpu(const float* values /*[n]*/, int64_t n, float* to /*[n]*/, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_ADD_FLOATS_H_
