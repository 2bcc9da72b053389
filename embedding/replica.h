#ifndef SPARROW_EMBEDDING_REPLICA_H_
#define SPARROW_EMBEDDING_REPLICA_H_

// Rows that several workers hold, each a copy of every one, in slots that are decided elsewhere: what their copies need
// beside look-ups (embedding/row_cache.h) and updates (embedding/sparse_update.h). The CPU half; the CUDA half is
// embedding/replica_gpu.h.

#include <cstdint>
#include <span>

#include "base/cuda/host_device.h"
#include "base/random.h"
#include "embedding/row_layout.h"
#include "embedding/row_name.h"

namespace sparrow {

// Puts a batch's rows in another order: first those that have a slot, in any order, then the others, in theirs.
// order[i] is where row i goes. slots_in_order[order[i]] = slots[i], but behind those that have one all are `none`.
void HotFirstCpu(std::span<const uint32_t> slots /*[rows]; kNoSlot: none*/, uint32_t none,
                 std::span<uint32_t> order /*[rows]*/, std::span<uint32_t> slots_in_order /*[.., at least rows]*/);

// The weights of row i become packed[positions[i]]; its record begins at rows + i * slot_bytes.
void PlaceWeightsCpu(std::span<const float> packed /*[.., dim]*/, std::span<const uint32_t> positions, uint32_t dim,
                     uint64_t slot_bytes, std::span<char> rows /*[positions, slot_bytes]*/);

// The record in slots[i] becomes packed[positions[i]]; what pads a slot stays. REQUIRES: slots differ.
void PutRecordsCpu(std::span<const char> packed /*[.., record_bytes]*/, std::span<const uint32_t> positions,
                   std::span<const uint32_t> slots /*[positions]*/, const RowLayout& layout,
                   std::span<char> records /*[.., slot_bytes]*/);

// How often rows were used: below 16 bits of uses, 65,535 at most, above them the number of decisions, modulo 2^16, as
// of which they stand. Uses count half after each decision.
SPARROW_HOST_DEVICE inline uint32_t UsesNow(uint32_t word, uint32_t decisions) {
  const uint32_t ago = (decisions - (word >> 16)) & 0xffff;
  return ago < 16 ? (word & 0xffff) >> ago : 0;
}
SPARROW_HOST_DEVICE inline uint32_t UsesWord(uint32_t uses, uint32_t decisions) {
  return decisions << 16 | (uses < 0xffff ? uses : 0xffff);
}
// One use more of each of the rows in `slots`, which differ; slots beyond `uses` are passed over.
void CountUsesCpu(std::span<const uint32_t> slots, uint32_t decisions, std::span<uint32_t> uses);

// Of a record in a slot: equal for equal ones, and hardly ever for others. Words are summed, in any order.
SPARROW_HOST_DEVICE inline uint64_t WordDigest(uint32_t word, uint32_t position) { return RandomBits(word, position); }
SPARROW_HOST_DEVICE inline uint64_t RecordDigest(uint64_t words, uint32_t slot) { return RandomBits(words, slot); }
// The sum of the records' digests, each as often as its slot is listed; slots from slots_end on are passed over.
uint64_t DigestRecordsCpu(std::span<const char> records /*[.., slot_bytes]*/, const RowLayout& layout,
                          std::span<const uint32_t> slots, uint32_t slots_end);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_REPLICA_H_
