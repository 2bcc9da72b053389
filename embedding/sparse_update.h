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

// The gradients of equal rows, summed across look-ups, bags and features: sums[s] is row s's, 0 where no look-up reads
// it. bags.index are slots. The gradient of bag i of feature f begins at output_gradients[i * stride + columns[f]]. A
// row's gradients are summed feature by feature, bag by bag. Returns how many rows have a sum that is not finite.
// REQUIRES: CheckBags has passed.
uint64_t SumGradientsCpu(std::span<const Bags> features, std::span<const uint32_t> columns,
                         std::span<const float> output_gradients /*[samples, stride]*/, uint32_t stride, uint32_t dim,
                         std::span<float> sums /*[slots, dim]*/);

// Makes these sums and updates each row that was looked up once: row s is the record at records + s * slot_bytes.
// Returns how many rows were left as they are, because their sum times the scale is NaN or above kGradientMax in an
// element. REQUIRES: float32 storage; CheckBags has passed.
uint64_t SparseUpdateCpu(const TableSpec& spec, std::span<const Bags> features, std::span<const uint32_t> columns,
                         std::span<const float> output_gradients /*[samples, stride]*/, uint32_t stride,
                         const ApplyOptions& options, std::span<char> records /*[slots, slot_bytes]*/);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_SPARSE_UPDATE_H_
