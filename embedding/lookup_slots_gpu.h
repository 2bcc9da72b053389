#ifndef SPARROW_EMBEDDING_LOOKUP_SLOTS_GPU_H_
#define SPARROW_EMBEDDING_LOOKUP_SLOTS_GPU_H_

// The CUDA half of embedding/lookup_slots.h. Needs CUDA and base/cuda only. All arrays are in GPU memory; calls are
// queued on `queue`, allocate nothing and wait for nothing.

#include <cstdint>

#include "base/cuda/stream.h"
#include "embedding/row_name.h"

namespace sparrow {

// Keys of a batch's look-ups, in the order of bags (embedding/bag_gpu.h DeviceBags).
struct DeviceKeys {
  const uint64_t* keys = nullptr;     // [lookups]
  const uint32_t* offsets = nullptr;  // [features * samples + 1]
  const uint32_t* tables = nullptr;   // [features]
  uint32_t features = 0;
  uint32_t samples = 0;
  uint32_t lookups = 0;
};

void NameLookupsGpu(const DeviceKeys& keys, RowName* names /*[lookups]*/, const Stream& queue);

void PlaceMissingGpu(const uint32_t* positions /*[missing]*/, uint32_t missing, uint32_t first_beside,
                     uint32_t* given /*[missing]*/, uint32_t* slots /*[unique]*/, const Stream& queue);

void SlotsOfLookupsGpu(const uint32_t* index /*[lookups]*/, uint32_t lookups, const uint32_t* slots /*[unique]*/,
                       uint32_t* output /*[lookups]*/, const Stream& queue);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_LOOKUP_SLOTS_GPU_H_
