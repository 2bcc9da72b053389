#ifndef SPARROW_DENSE_COLUMN_SUMS_H_
#define SPARROW_DENSE_COLUMN_SUMS_H_

// Sums of a matrix's columns on the GPU, added to float32: gradients of biases over several batches. Needs CUDA and
// base/cuda only.

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/device_matrix.h"

namespace sparrow {

// Floats of GPU memory that sums of columns are made in, one call at a time; their contents mean nothing before and
// after.
size_t ColumnSumsWorkspaceFloats(int64_t n, int64_t cols);

// sums[j] += the sum of column j, in float and in an order that depends on the matrix's shape alone. Queued on
// `stream`; a graph can record it. 0 rows are legal. REQUIRES: workspace at a multiple of 16 bytes, of
// ColumnSumsWorkspaceFloats(n, cols).
void ColumnSumsAddGpu(Precision precision, const DeviceMatrix& values /*[n, cols]*/, float* sums /*[cols]*/,
                      float* workspace, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_COLUMN_SUMS_H_
