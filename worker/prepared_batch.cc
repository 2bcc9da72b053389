#include "worker/prepared_batch.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "base/room.h"
#include "base/status_macros.h"

namespace sparrow {

Bags PreparedBatch::bags(const JobLayout& layout, uint32_t feature) const {
  const SparseFeature& sparse = batch.features[feature];
  return {.offsets = sparse.offsets,
          .index = index[feature],
          .weights = sparse.weights,
          .pooling = layout.features[feature].pooling};
}

absl::Status PrepareBatch(const JobLayout& layout, const PsClient& client, const KeyFilter* before,
                          PreparedBatch* prepared) {
  prepared->tables.resize(layout.tables.size());
  prepared->index.resize(layout.features.size());
  std::vector<std::span<const Key>> keys;
  for (size_t t = 0; t < layout.tables.size(); ++t) {
    Dedup* dedup = &prepared->tables[t];
    dedup->Clear();
    for (const uint32_t f : layout.tables[t].features) {
      const SparseFeature& sparse = prepared->batch.features[f];
      prepared->index[f].resize(sparse.ids.size());
      dedup->Add(sparse.ids, std::span<uint32_t>(prepared->index[f]));
    }
    keys.push_back(dedup->unique());
  }
  for (uint32_t f = 0; f < layout.features.size(); ++f) {
    const int64_t bags = prepared->bags(layout, f).rows();
    if (bags != int64_t{prepared->batch.rows}) {
      return absl::InvalidArgumentError(absl::StrCat("feature \"", layout.features[f].name, "\" has ", bags,
                                                     " bags in a batch of ", prepared->batch.rows, " rows"));
    }
    RETURN_IF_ERROR(Annotate(CheckBags(prepared->bags(layout, f), keys[layout.features[f].table].size()),
                             absl::StrCat("feature \"", layout.features[f].name, "\"")));
  }
  client.Partition(keys, before, &prepared->partition);
  prepared->row_buffers.resize(layout.tables.size());
  prepared->rows.resize(layout.tables.size());
  for (size_t t = 0; t < layout.tables.size(); ++t) {
    prepared->rows[t] = Room(&prepared->row_buffers[t], keys[t].size() * layout.tables[t].dim);
  }
  for (uint32_t f = 0; f < layout.features.size(); ++f) {
    const std::span<const uint32_t> position = prepared->partition.position(layout.features[f].table);
    if (position.empty()) continue;
    for (uint32_t& index : prepared->index[f]) index = position[index];
  }
  return absl::OkStatus();
}

}  // namespace sparrow
