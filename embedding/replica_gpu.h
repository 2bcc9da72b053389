#ifndef SPARROW_EMBEDDING_REPLICA_GPU_H_
#define SPARROW_EMBEDDING_REPLICA_GPU_H_

// The CUDA half of embedding/replica.h, whose halves of functions it has by their names. Needs CUDA and base/cuda only.
// All arrays are in GPU memory; calls are queued on `queue`, allocate nothing and wait for nothing.

#include <cstdint>

#include "base/cuda/stream.h"
#include "embedding/row_cache_gpu.h"
#include "embedding/row_layout.h"
#include "embedding/row_name.h"

namespace sparrow {

// From now on the index finds names[i] in slots[i], and not what it found there before. REQUIRES: slots differ.
void SeatNamesGpu(const RowName* names /*[n]*/, const uint32_t* slots /*[n]*/, uint32_t n, const DeviceRowIndex& index,
                  const Stream& queue);

// What HotFirstGpu works on: a batch's rows after RowCacheGpu::Find and ListMissing.
struct DeviceFound {
  uint32_t max = 0;                         // Rows, at most.
  const uint32_t* count = nullptr;          // [1]: rows.
  const uint32_t* slots = nullptr;          // [max]
  const uint32_t* missing = nullptr;        // [max]: which rows have none,
  const uint32_t* missing_count = nullptr;  // [1]: and how many they are.
};
void HotFirstGpu(const DeviceFound& found, uint32_t none, uint32_t* order /*[max]*/, uint32_t* slots_in_order /*[max]*/,
                 uint32_t* taken /*[1], to work with*/, const Stream& queue);

void PlaceWeightsGpu(const float* packed, const uint32_t* positions /*[n]*/, uint32_t n, uint32_t dim,
                     uint64_t slot_bytes, char* rows /*[n, slot_bytes]*/, const Stream& queue);

// They are clean then.
void PutRecordsGpu(const char* packed, const uint32_t* positions /*[n]*/, const uint32_t* slots /*[n]*/, uint32_t n,
                   const DeviceRecords& records, uint8_t* dirty, const Stream& queue);

void CleanRowsGpu(const uint32_t* slots /*[n]*/, uint32_t n, uint8_t* dirty, const Stream& queue);

void CountUsesGpu(const uint32_t* slots /*[n]*/, uint32_t n, uint32_t decisions, uint32_t* uses /*[slots_end]*/,
                  uint32_t slots_end, const Stream& queue);
// uses[slots[i]] = words[i]
void SetUsesGpu(const uint32_t* slots /*[n]*/, const uint32_t* words /*[n]*/, uint32_t n, uint32_t* uses,
                const Stream& queue);

// *sum grows by it.
void DigestRecordsGpu(const DeviceRecords& records, const uint32_t* slots /*[n]*/, uint32_t n, uint32_t slots_end,
                      uint64_t* sum /*[1]*/, const Stream& queue);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_REPLICA_GPU_H_
