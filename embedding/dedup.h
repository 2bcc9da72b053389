#ifndef SPARROW_EMBEDDING_DEDUP_H_
#define SPARROW_EMBEDDING_DEDUP_H_

// Unique keys of a batch and, for each look-up, which unique key it is.

#include <cstdint>
#include <span>
#include <vector>

#include "embedding/partition.h"
#include "embedding/row_name.h"

namespace sparrow {

// Reusable: keeps its memory from batch to batch. Not thread-safe.
class Dedup {
 public:
  // Starts a new batch.
  void Clear();

  // Adds the look-ups of one feature (several features of one table share a Dedup). index[i] becomes the position of
  // keys[i] in unique(). REQUIRES: index.size() == keys.size(); fewer than 2^32 unique keys.
  void Add(std::span<const Key> keys, std::span<uint32_t> index);

  // In order of first appearance.
  const std::vector<Key>& unique() const { return unique_; }

 private:
  // Makes slots_ large enough for so many unique keys.
  void Reserve(uint64_t keys);

  std::vector<Key> unique_;
  // Open addressing, a power of two: position in unique_ + 1. 0 is free, so no key is reserved.
  std::vector<uint32_t> slots_;
  uint64_t mask_ = 0;
};

// The same for names of rows of several tables: the CPU half of embedding/dedup_gpu.h. REQUIRES: index.size() ==
// names.size(), below 2^32 - 1.
void UniqueNamesCpu(std::span<const RowName> names, std::vector<RowName>* unique, std::span<uint32_t> index);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_DEDUP_H_
