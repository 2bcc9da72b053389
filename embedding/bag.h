#ifndef SPARROW_EMBEDDING_BAG_H_
#define SPARROW_EMBEDDING_BAG_H_

// Pooling of bags of rows, and its backward. A feature's bags are CSR: bag i holds lookups offsets[i] to
// offsets[i+1]-1.

#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace sparrow {

// kSum: sum of weight * row. kMean: that, divided by the sum of the bag's weights (without weights: by its number of
// ids). A bag that is empty, or whose weights sum to 0 under kMean, pools to 0 and has no gradient.
enum class Pooling { kSum, kMean };

// The bags of one feature in one batch. Views; nothing is owned.
struct Bags {
  std::span<const uint32_t> offsets;  // [rows + 1]; rows = 0 may have no offsets at all.
  std::span<const uint32_t> index;    // [lookups]: which row of the unique rows each look-up reads.
  std::span<const float> weights;     // [lookups], or empty: all 1.
  Pooling pooling = Pooling::kSum;

  int64_t rows() const { return offsets.empty() ? 0 : static_cast<int64_t>(offsets.size()) - 1; }
};

// InvalidArgument, with the numbers, if offsets do not start at 0, decrease, or do not end at the number of look-ups;
// if weights has another length than the look-ups, or holds one that is not finite; or if an index is not below
// unique_rows. Everything below requires that this has passed.
absl::Status CheckBags(const Bags& bags, uint64_t unique_rows);

// The same where look-ups are not yet indexes: all but the last.
absl::Status CheckOffsets(std::span<const uint32_t> offsets, std::span<const float> weights, size_t lookups);

// output[i, column ... column + dim) = pooled rows of bag i (0 for an empty bag). `stride` is the row length of output.
void BagForwardCpu(const Bags& bags, std::span<const float> rows /*[unique, dim]*/, uint32_t dim,
                   std::span<float> output /*[rows, stride]*/, uint32_t stride, uint32_t column);

// gradients[u] += sum over look-ups of row u of factor * output_gradient[bag, column ...], where factor is what the
// forward multiplied the row by: the weight, under kMean divided by the sum of the bag's weights. Duplicates are
// summed, in the order of the bags, so the result does not depend on the number of threads.
void BagBackwardCpu(const Bags& bags, std::span<const float> output_gradients /*[rows, stride]*/, uint32_t stride,
                    uint32_t column, uint32_t dim, std::span<float> gradients /*[unique, dim]*/);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_BAG_H_
