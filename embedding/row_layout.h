#ifndef SPARROW_EMBEDDING_ROW_LAYOUT_H_
#define SPARROW_EMBEDDING_ROW_LAYOUT_H_

// A row as bytes: weights | optimizer state | metadata, little-endian, nothing between them but the two zero bytes
// behind an odd number of 16-bit weights. The one place that counts bytes. Fixed for ever: checkpoints and the cold
// tier store exactly record_bytes() a row. In memory a row occupies a slot of slot_bytes(), so that each begins on a
// 16-byte boundary; what pads the slot is never stored or sent.

#include <cstdint>
#include <cstring>

#include "base/cuda/host_device.h"
#include "embedding/optimizer.h"
#include "embedding/row_type.h"

namespace sparrow {

struct RowMetadata {
  uint32_t updates = 0;    // Of this row, since it was created: Adam's t. Stops at 2^32 - 1.
  uint32_t frequency = 0;  // How often the row was used in training, for eviction by frequency: grows with every
                           // update, not with pulls, because a repeated pull must not change what a checkpoint holds.
  uint64_t last_step = 0;  // Of the last update.
};
static_assert(sizeof(RowMetadata) == 16);

// A value; cheap to copy. `record` below points to a row's first byte, at a multiple of 4.
class RowLayout {
 public:
  // REQUIRES: storage is not kInt8.
  RowLayout(uint32_t dim, SparseOptimizerKind optimizer, RowType storage = RowType::kFloat32)
      : dim_(dim),
        weight_bytes_(storage == RowType::kFloat32 ? 4 * dim : (2 * dim + 3) / 4 * 4),
        state_floats_(StateFloats(optimizer, dim)),
        storage_(storage) {}

  SPARROW_HOST_DEVICE uint32_t dim() const { return dim_; }
  SPARROW_HOST_DEVICE uint32_t state_floats() const { return state_floats_; }
  SPARROW_HOST_DEVICE RowType storage() const { return storage_; }
  SPARROW_HOST_DEVICE uint64_t weight_bytes() const { return weight_bytes_; }  // What pads them included.
  SPARROW_HOST_DEVICE uint64_t metadata_offset() const { return weight_bytes_ + uint64_t{4} * state_floats_; }
  SPARROW_HOST_DEVICE uint64_t record_bytes() const { return metadata_offset() + sizeof(RowMetadata); }
  SPARROW_HOST_DEVICE uint64_t slot_bytes() const { return (record_bytes() + 15) / 16 * 16; }

  // REQUIRES: storage() is kFloat32. (embedding/apply.h reads weights of any storage.)
  SPARROW_HOST_DEVICE float* Weights(char* record) const { return reinterpret_cast<float*>(record); }
  SPARROW_HOST_DEVICE float* State(char* record) const { return reinterpret_cast<float*>(record + weight_bytes_); }

  // By copy: the metadata begins at a multiple of 4 only.
  RowMetadata Metadata(const char* record) const {
    RowMetadata metadata;
    std::memcpy(&metadata, record + metadata_offset(), sizeof(metadata));
    return metadata;
  }
  void SetMetadata(const RowMetadata& metadata, char* record) const {
    std::memcpy(record + metadata_offset(), &metadata, sizeof(metadata));
  }

 private:
  uint32_t dim_;
  uint32_t weight_bytes_;
  uint32_t state_floats_;
  RowType storage_;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_LAYOUT_H_
