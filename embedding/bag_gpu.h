#ifndef SPARROW_EMBEDDING_BAG_GPU_H_
#define SPARROW_EMBEDDING_BAG_GPU_H_

// The CUDA half of embedding/bag.h's forward: pooling of bags of rows that lie in GPU memory, of all features in one
// launch. Needs CUDA and base/cuda only.

#include <cstdint>

#include "base/cuda/host_device.h"
#include "base/cuda/stream.h"
#include "embedding/element_type.h"

namespace sparrow {

// embedding/bag.h Bags of several features, one feature after the other: bag f * samples + i is feature f's of sample
// i. Arrays lie in GPU memory. CheckBags must have passed on the host. A batch of fewer samples has empty bags for the
// others: that is how one CUDA graph serves batches of several sizes.
struct DeviceBags {
  const uint32_t* offsets = nullptr;  // [features * samples + 1]
  const uint32_t* index = nullptr;    // [lookups]: slots. None behind offsets[features * samples] is read.
  const float* weights = nullptr;     // [lookups], or nullptr: all 1.
  const uint8_t* mean = nullptr;  // [features]: whether the feature's pooling is kMean, else kSum; nullptr: no one's.
  uint32_t features = 0;
  uint32_t samples = 0;
  uint32_t lookups = 0;  // About how many there are at most: how pooling is divided among threads. 0: not known.

  SPARROW_HOST_DEVICE int64_t rows() const { return int64_t{features} * samples; }  // Below 2^31.
};

// Rows of `dim` float32 in GPU memory: row s begins at data + s * slot_bytes. Records (embedding/row_layout.h) are
// such, and so is an array [rows, dim] if dim is a multiple of 4. Both at multiples of 16; slot_bytes at least 4 * dim.
struct DeviceRows {
  const char* data = nullptr;
  uint64_t slot_bytes = 0;
  uint32_t dim = 0;
};

// Pooled rows or their gradients, in GPU memory: those of sample i and feature f are the `dim` elements that begin at
// element i * stride + columns[f]. Four elements are moved at once if values lie at a multiple of four of them and dim,
// stride and all columns are multiples of four.
struct DevicePooled {
  void* values = nullptr;  // [samples, stride]
  ElementType type = ElementType::kFloat32;
  const uint32_t* columns = nullptr;  // [features]
  uint32_t stride = 0;                // Elements.
  bool columns_divide_by_4 = false;   // All of them: known on the host, because they lie in GPU memory.

  bool InFours(uint32_t dim) const {
    return dim % 4 == 0 && stride % 4 == 0 && columns_divide_by_4 &&
           reinterpret_cast<uintptr_t>(values) % (4 * ElementBytes(type)) == 0;
  }
};

// As BagForwardCpu, feature by feature. Bags are summed in float32 in their order, so that float32 output equals the
// CPU's bit for bit; to 16 bits it is rounded to the nearest (beyond their range: to an infinity). Other elements of
// the output are left. Queued on `queue`.
void BagsForwardGpu(const DeviceBags& bags, const DeviceRows& rows, const DevicePooled& output, const Stream& queue);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_BAG_GPU_H_
