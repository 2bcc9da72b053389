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

namespace {

absl::Status CheckNumberOfBags(const JobLayout& layout, uint32_t feature, const Batch& batch) {
  const std::vector<uint32_t>& offsets = batch.features[feature].offsets;
  const size_t bags = offsets.empty() ? 0 : offsets.size() - 1;
  if (bags == batch.rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("feature \"", layout.features[feature].name, "\" has ", bags,
                                                 " bags in a batch of ", batch.rows, " rows"));
}

}  // namespace

absl::Status CheckBatch(const JobLayout& layout, const Batch& batch) {
  for (uint32_t f = 0; f < layout.features.size(); ++f) {
    const SparseFeature& sparse = batch.features[f];
    RETURN_IF_ERROR(CheckNumberOfBags(layout, f, batch));
    RETURN_IF_ERROR(Annotate(CheckOffsets(sparse.offsets, sparse.weights, sparse.ids.size()),
                             absl::StrCat("feature \"", layout.features[f].name, "\"")));
  }
  return absl::OkStatus();
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
    RETURN_IF_ERROR(CheckNumberOfBags(layout, f, prepared->batch));
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
