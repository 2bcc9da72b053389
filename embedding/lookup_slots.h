#ifndef SPARROW_EMBEDDING_LOOKUP_SLOTS_H_
#define SPARROW_EMBEDDING_LOOKUP_SLOTS_H_

// From the keys of a batch's look-ups to the slots of their rows, in small steps around those of embedding/dedup.h and
// embedding/row_cache.h: keys -> names -> unique names -> slots found -> those that were missing and now have a place
// -> a slot for each look-up. The CPU half; the CUDA half is embedding/lookup_slots_gpu.h.

#include <cstdint>
#include <span>

#include "embedding/partition.h"
#include "embedding/row_name.h"

namespace sparrow {

// names[i] is that of look-up i, whose bag is one of feature f, if it is one of bags f * samples to (f + 1) * samples
// - 1. REQUIRES: offsets ascend from 0 to the number of keys.
void NameLookupsCpu(std::span<const Key> keys, std::span<const uint32_t> offsets /*[features * samples + 1]*/,
                    std::span<const uint32_t> tables /*[features]*/, std::span<RowName> names /*[keys]*/);

// Unique names that were missing have been inserted: given[i] is the slot of the one at positions[i], or kNoSlot, which
// becomes first_beside + i. slots[positions[i]] becomes the same. REQUIRES: positions differ.
void PlaceMissingCpu(std::span<const uint32_t> positions /*[missing]*/, uint32_t first_beside,
                     std::span<uint32_t> given /*[missing]*/, std::span<uint32_t> slots /*[unique]*/);

// output[i] = slots[index[i]].
void SlotsOfLookupsCpu(std::span<const uint32_t> index /*[lookups]*/, std::span<const uint32_t> slots /*[unique]*/,
                       std::span<uint32_t> output /*[lookups]*/);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_LOOKUP_SLOTS_H_
