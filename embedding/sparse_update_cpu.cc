#include <vector>

#include "base/check.h"
#include "embedding/sparse_update.h"

namespace sparrow {

void SparseUpdateCpu(const TableSpec& spec, std::span<const Bags> features, std::span<const uint32_t> columns,
                     std::span<const float> output_gradients, uint32_t stride, const ApplyOptions& options,
                     std::span<char> records) {
  CHECK(spec.storage == RowType::kFloat32);
  CHECK_EQ(features.size(), columns.size());
  const uint64_t slot_bytes = spec.Layout().slot_bytes();
  const uint64_t slots = records.size() / slot_bytes;
  std::vector<float> gradients(slots * spec.dim);
  std::vector<bool> touched(slots);
  for (size_t f = 0; f < features.size(); ++f) {
    BagBackwardCpu(features[f], output_gradients, stride, columns[f], spec.dim, gradients);
    for (const uint32_t slot : features[f].index) touched[slot] = true;
  }
  const RowUpdate update(spec, options);
  for (uint64_t slot = 0; slot < slots; ++slot) {
    if (touched[slot]) update(slot, gradients.data() + slot * spec.dim, records.data() + slot * slot_bytes);
  }
}

}  // namespace sparrow
