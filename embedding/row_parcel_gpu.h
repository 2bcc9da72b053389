#ifndef SPARROW_EMBEDDING_ROW_PARCEL_GPU_H_
#define SPARROW_EMBEDDING_ROW_PARCEL_GPU_H_

// The CUDA half of embedding/row_parcel.h. Needs CUDA and base/cuda only. All arrays are in GPU memory; calls are
// queued on `queue`, allocate nothing and wait for nothing. Where names.count is smaller than names.max, what belongs
// to the names behind it is not written.

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "embedding/row_layout.h"
#include "embedding/row_name.h"
#include "embedding/sparse_update_gpu.h"

namespace sparrow {

// For up to `names` names: about 12 bytes for each.
size_t OrderWorkspaceBytes(uint32_t names, uint32_t tables);

// REQUIRES: workspace.bytes >= OrderWorkspaceBytes(m, tables) for an m >= names.max. It holds nothing between calls.
void OrderByTableGpu(const DeviceNames& names, uint32_t tables, uint32_t* order /*[names.max]*/,
                     const DeviceWorkspace& workspace, const Stream& queue);

// order: nullptr, or [names.max].
void ListKeysGpu(const DeviceNames& names, const uint32_t* order, uint32_t tables, uint64_t* keys /*[names.max]*/,
                 uint32_t* begins /*[tables + 1]*/, const Stream& queue);

// Of the first *count, at most max, or with nullptr of all.
void PackRecordsGpu(const char* records, const uint32_t* order /*[max]*/, uint32_t max, const uint32_t* count,
                    const RowLayout& layout, char* packed /*[max, record_bytes]*/, const Stream& queue);

void UnpackRecordsGpu(const char* packed, const uint32_t* positions /*[n]*/, uint32_t n, const RowLayout& layout,
                      char* records /*[n, slot_bytes]*/, const Stream& queue);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_PARCEL_GPU_H_
