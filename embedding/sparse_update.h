#ifndef SPARROW_EMBEDDING_SPARSE_UPDATE_H_
#define SPARROW_EMBEDDING_SPARSE_UPDATE_H_

// The sparse backward and the optimizer in one call, over rows that lie in an array: what a cache of hot rows does with
// a batch. The CPU half; the CUDA half is embedding/sparse_update_gpu.h.

#include <cstdint>
#include <span>

#include "embedding/apply.h"
#include "embedding/bag.h"
#include "embedding/table_spec.h"

namespace sparrow {

// Sums the gradients of equal rows, across look-ups, bags and features, and updates each row that was looked up once.
// bags.index are slots: row s is the record at records + s * slot_bytes. The gradient of bag i of feature f begins at
// output_gradients[i * stride + columns[f]]. A row's gradients are summed feature by feature, bag by bag.
// REQUIRES: float32 storage; CheckBags has passed.
void SparseUpdateCpu(const TableSpec& spec, std::span<const Bags> features, std::span<const uint32_t> columns,
                     std::span<const float> output_gradients /*[samples, stride]*/, uint32_t stride,
                     const ApplyOptions& options, std::span<char> records /*[slots, slot_bytes]*/);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_SPARSE_UPDATE_H_
