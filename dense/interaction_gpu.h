#ifndef SPARROW_DENSE_INTERACTION_GPU_H_
#define SPARROW_DENSE_INTERACTION_GPU_H_

// The CUDA half of dense/interaction.h. Needs CUDA and base/cuda only.
//
// All matrices are GPU memory with elements of the precision's type; sums are float32. Where shape.bottom_cols is 0,
// the bottom's matrices are ignored. 0 rows are legal. Queued on `stream`, without allocation or synchronisation, so a
// graph can record it. Two runs are bit-equal.
//
// 16-bit types with dim 16, 32, 64 or 128, at most 32 vectors, and rows that begin at multiples of 16 bytes go through
// tensor cores at the speed of the memory; everything else, float among it, through plain arithmetic.

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"
#include "dense/interaction.h"

namespace sparrow {

// Whether the kernel queued last before writes none of the vectors that are read (the bottom's by a forward apart), nor
// records and slots: those may then be read before it ends (base/cuda/launch_early.cuh).
enum class VectorsReady { kNo, kYes };

// As InteractionForwardCpu. Columns of `out` from outputs() to PaddedColumns(outputs()) are set to 0.
// REQUIRES: out.stride >= PaddedColumns(outputs()).
void InteractionForwardGpu(const InteractionShape& shape, Precision precision, const DeviceMatrix& bottom /*[n, dim]*/,
                           const DeviceMatrix& sparse /*[n, features * dim]*/, VectorsReady ready,
                           const DeviceMatrix& out /*[n, outputs]*/, const Stream& stream);

// As InteractionBackwardCpu: overwrites both gradients. With bottom_relu the bottom's vector came out of a ReLU, and
// its gradient is 0 where it is not above 0. The direct part of the bottom's gradient is added before rounding.
// REQUIRES: columns up to PaddedColumns(outputs()) of every row of out_gradients can be read; they count for nothing.
void InteractionBackwardGpu(const InteractionShape& shape, Precision precision, const DeviceMatrix& bottom /*[n, dim]*/,
                            const DeviceMatrix& sparse /*[n, features * dim]*/, VectorsReady ready,
                            const DeviceMatrix& out_gradients /*[n, outputs]*/, bool bottom_relu,
                            const DeviceMatrix& bottom_gradients /*[n, dim]*/,
                            const DeviceMatrix& sparse_gradients /*[n, features * dim]*/, const Stream& stream);

// The vectors of one-hot features where they are stored: feature f of sample i is the float32 weights with which record
// slots[f * n + i] begins.
struct GatheredVectors {
  const char* records = nullptr;    // GPU memory, at a multiple of 16 bytes.
  size_t slot_bytes = 0;            // From one record to the next, a multiple of 16.
  const uint32_t* slots = nullptr;  // [features, n], GPU memory.
};

// Whether InteractionForwardGatheredGpu reads the records in the interaction's own pass, which saves writing the vectors
// before; else a pass before gathers them.
bool InteractionGathersItself(const InteractionShape& shape, Precision precision);

// Writes the vectors, rounded to the precision's type, to `sparse`, which the backward pass reads, and
// InteractionForwardGpu's result of them to `out`, bit for bit.
void InteractionForwardGatheredGpu(const InteractionShape& shape, Precision precision,
                                   const DeviceMatrix& bottom /*[n, dim]*/, const GatheredVectors& vectors,
                                   const DeviceMatrix& sparse /*[n, features * dim]*/, VectorsReady ready,
                                   const DeviceMatrix& out /*[n, outputs]*/, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_INTERACTION_GPU_H_
