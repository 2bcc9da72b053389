#include "worker/device_batch.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
#include "base/parallel.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr size_t kLookupsMax = (size_t{1} << 31) - 1;  // Of the kernels.

// Room for `size` elements, and for some more, size_max at most, if it has to be allocated anew. Returns whether it
// was.
template <typename T>
absl::StatusOr<bool> Grow(size_t size, size_t size_max, absl::string_view what, Mirror<T>* mirror) {
  if (mirror->device.size() >= size) return false;
  // The old arrays are freed first: there may not be memory for both.
  *mirror = Mirror<T>{.host = *PinnedBuffer<T>::Allocate(0), .device = *DeviceBuffer<T>::Allocate(0)};
  ASSIGN_OR_RETURN(*mirror, Mirror<T>::Make(std::max(size, std::min(size + size / 4 + 1, size_max)), what));
  return true;
}

size_t LookupsOf(const PreparedBatch& prepared, const DeviceBatch::Group& group) {
  size_t lookups = 0;
  for (const uint32_t f : group.features) lookups += prepared.index[f].size();
  return lookups;
}

}  // namespace

std::vector<std::vector<uint32_t>> DeviceBatch::GroupsByDim(const JobLayout& layout) {
  std::map<uint32_t, std::vector<uint32_t>> groups;
  for (uint32_t t = 0; t < layout.tables.size(); ++t) groups[layout.tables[t].dim].push_back(t);
  std::vector<std::vector<uint32_t>> result;
  for (auto& [dim, tables] : groups) result.push_back(std::move(tables));
  return result;
}

absl::StatusOr<DeviceBatch> DeviceBatch::Make(const JobLayout* layout,
                                              const std::vector<std::vector<uint32_t>>& table_groups, int64_t rows_max,
                                              const Stream& stream) {
  const size_t rows = static_cast<size_t>(rows_max);
  ASSIGN_OR_RETURN(Mirror<float> dense, Mirror<float>::Make(rows * layout->dense_columns, "a batch's dense inputs"));
  ASSIGN_OR_RETURN(Mirror<float> labels, Mirror<float>::Make(rows, "a batch's labels"));
  ASSIGN_OR_RETURN(Mirror<uint32_t> samples, Mirror<uint32_t>::Make(1, "a batch's number of rows"));
  // What lies behind a batch's own rows must be finite.
  dense.device.Fill(0, stream);
  labels.device.Fill(0, stream);
  DeviceBatch batch(layout, rows_max, std::move(dense), std::move(labels), std::move(samples));
  for (const std::vector<uint32_t>& tables : table_groups) {
    ASSIGN_OR_RETURN(Group group, batch.MakeGroup(tables, stream));
    batch.groups_.push_back(std::move(group));
  }
  batch.sums_.resize(layout->tables.size());
  return batch;
}

absl::StatusOr<DeviceBatch::Group> DeviceBatch::MakeGroup(const std::vector<uint32_t>& tables,
                                                          const Stream& stream) const {
  const uint32_t dim = layout_->tables[tables[0]].dim;
  std::vector<uint32_t> features;
  for (const uint32_t t : tables) {
    CHECK_EQ(layout_->tables[t].dim, dim);
    features.insert(features.end(), layout_->tables[t].features.begin(), layout_->tables[t].features.end());
  }
  const size_t n = features.size();
  if (n * static_cast<size_t>(rows_max_) > kLookupsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", rows_max_, " rows has ",
                                                   n * static_cast<size_t>(rows_max_), " bags of dimension ", dim,
                                                   ", the limit is ", kLookupsMax, "; make the batch smaller"));
  }
  ASSIGN_OR_RETURN(Mirror<uint32_t> columns, Mirror<uint32_t>::Make(n, "the columns of features"));
  ASSIGN_OR_RETURN(Mirror<uint8_t> mean, Mirror<uint8_t>::Make(n, "the pooling of features"));
  bool by_4 = true;
  for (size_t i = 0; i < n; ++i) {
    const JobLayout::Feature& feature = layout_->features[features[i]];
    columns.host.data()[i] = feature.column;
    mean.host.data()[i] = feature.pooling == Pooling::kMean ? 1 : 0;
    by_4 = by_4 && feature.column % 4 == 0;
  }
  columns.Upload(n, stream);
  mean.Upload(n, stream);
  ASSIGN_OR_RETURN(Mirror<uint32_t> offsets,
                   Mirror<uint32_t>::Make(n * static_cast<size_t>(rows_max_) + 1, "the offsets of bags"));
  ASSIGN_OR_RETURN(Mirror<uint32_t> index, Mirror<uint32_t>::Make(0, ""));
  ASSIGN_OR_RETURN(Mirror<float> weights, Mirror<float>::Make(0, ""));
  ASSIGN_OR_RETURN(Mirror<float> rows, Mirror<float>::Make(0, ""));
  ASSIGN_OR_RETURN(Mirror<float> sums, Mirror<float>::Make(0, ""));
  ASSIGN_OR_RETURN(DeviceBuffer<char> workspace, AllocateOnDevice<char>(0, ""));
  return Group{.dim = dim,
               .padded_dim = (dim + 3) / 4 * 4,
               .tables = tables,
               .base = {},
               .features = std::move(features),
               .columns_divide_by_4 = by_4,
               .columns = std::move(columns),
               .mean = std::move(mean),
               .offsets = std::move(offsets),
               .index = std::move(index),
               .weights = std::move(weights),
               .rows = std::move(rows),
               .sums = std::move(sums),
               .workspace = std::move(workspace),
               .source = {},
               .size = {.lookups = 0, .slots = 0, .dim = dim}};
}

absl::Status DeviceBatch::MakeRoom(const PreparedBatch& prepared, const Placed* placed, Group* group) {
  group->base.assign(1, 0);
  for (const uint32_t t : group->tables) {
    const size_t end = group->base.back() + prepared.tables[t].unique().size();
    if (end >= UINT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat("a batch reads ", end, " different rows of dimension ", group->dim,
                                                     ", the limit is ", UINT32_MAX - 1, "; make the batch smaller"));
    }
    group->base.push_back(static_cast<uint32_t>(end));
  }
  const size_t unique = group->base.back();
  const size_t lookups = LookupsOf(prepared, *group);
  if (lookups > kLookupsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a batch has ", lookups, " look-ups of dimension ", group->dim,
                                                   ", the limit is ", kLookupsMax, "; make the batch smaller"));
  }
  bool weighted = group->weights.device.size() > 0;
  for (const uint32_t f : group->features) weighted = weighted || !prepared.batch.features[f].weights.empty();
  bool moved = false;
  const auto grow = [&](auto* mirror, size_t size, size_t size_max, absl::string_view what) -> absl::Status {
    ASSIGN_OR_RETURN(const bool grown, Grow(size, size_max, what, mirror));
    moved = moved || grown;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(grow(&group->index, lookups, kLookupsMax, "the look-ups of a batch"));
  if (weighted)
    RETURN_IF_ERROR(
        grow(&group->weights, group->index.device.size(), kLookupsMax, "the weights of a batch's look-ups"));
  size_t slots = 0;
  if (placed == nullptr) {
    RETURN_IF_ERROR(grow(&group->rows, unique * group->padded_dim, SIZE_MAX, "the rows of a batch"));
    slots = group->rows.device.size() / group->padded_dim;
    group->source = {.data = reinterpret_cast<const char*>(group->rows.device.data()),
                     .slot_bytes = group->padded_dim * sizeof(float),
                     .dim = group->dim};
  } else {
    slots = placed->slots_end;
    group->source = placed->records.Rows();
  }
  if (!moved && slots <= group->size.slots) return absl::OkStatus();
  ++generation_;
  group->size.lookups = static_cast<uint32_t>(group->index.device.size());
  group->size.slots = std::max(group->size.slots, static_cast<uint32_t>(slots));
  group->workspace = *DeviceBuffer<char>::Allocate(0);
  ASSIGN_OR_RETURN(group->workspace, AllocateOnDevice<char>(SparseUpdateWorkspaceBytes(group->size),
                                                            "the sorting of a batch's look-ups"));
  return absl::OkStatus();
}

void DeviceBatch::LoadGroup(const PreparedBatch& prepared, int64_t rows, const Placed* placed, Group* group,
                            const Stream& stream) {
  const size_t samples = prepared.batch.rows;
  // Where each feature's look-ups begin, and its table's rows.
  std::vector<uint32_t> first(group->features.size() + 1, 0);
  std::vector<uint32_t> row_base(group->features.size());
  for (size_t i = 0; i < group->features.size(); ++i) {
    const uint32_t f = group->features[i];
    first[i + 1] = first[i] + static_cast<uint32_t>(prepared.index[f].size());
    const auto table = std::find(group->tables.begin(), group->tables.end(), layout_->features[f].table);
    row_base[i] = group->base[table - group->tables.begin()];
  }
  const bool weighted = group->weights.device.size() > 0;
  ParallelFor(static_cast<int64_t>(group->features.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const SparseFeature& sparse = prepared.batch.features[group->features[i]];
      const std::vector<uint32_t>& index = prepared.index[group->features[i]];
      uint32_t* const offsets = group->offsets.host.data() + i * rows;
      for (size_t s = 0; s < samples; ++s) offsets[s] = first[i] + sparse.offsets[s];
      for (size_t s = samples; s < static_cast<size_t>(rows); ++s) offsets[s] = first[i + 1];
      uint32_t* const slots = group->index.host.data() + first[i];
      if (placed == nullptr) {
        for (size_t l = 0; l < index.size(); ++l) slots[l] = row_base[i] + index[l];
      } else {
        for (size_t l = 0; l < index.size(); ++l) slots[l] = placed->slots[row_base[i] + index[l]];
      }
      if (!weighted) continue;
      float* const weights = group->weights.host.data() + first[i];
      if (sparse.weights.empty()) {
        std::fill_n(weights, index.size(), 1.0f);
      } else {
        std::copy(sparse.weights.begin(), sparse.weights.end(), weights);
      }
    }
  });
  group->offsets.host.data()[group->features.size() * static_cast<size_t>(rows)] = first.back();
  for (size_t i = 0; placed == nullptr && i < group->tables.size(); ++i) {
    const std::span<const float> from = prepared.rows[group->tables[i]];
    float* const to = group->rows.host.data() + size_t{group->base[i]} * group->padded_dim;
    const int64_t unique = group->base[i + 1] - group->base[i];
    ParallelFor(unique, 4096, [&](int64_t begin, int64_t end) {
      if (group->padded_dim == group->dim) {
        std::memcpy(to + begin * group->dim, from.data() + begin * group->dim,
                    static_cast<size_t>(end - begin) * group->dim * sizeof(float));
        return;
      }
      for (int64_t r = begin; r < end; ++r) {
        std::copy_n(from.data() + r * group->dim, group->dim, to + r * group->padded_dim);
      }
    });
  }
  group->offsets.Upload(group->features.size() * static_cast<size_t>(rows) + 1, stream);
  group->index.Upload(first.back(), stream);
  if (weighted) group->weights.Upload(first.back(), stream);
  if (placed == nullptr) group->rows.Upload(size_t{group->base.back()} * group->padded_dim, stream);
}

absl::Status DeviceBatch::Load(const PreparedBatch& prepared, int64_t rows, std::span<const Placed> placed,
                               const Stream& stream) {
  const Batch& batch = prepared.batch;
  CHECK(batch.rows <= rows && rows <= rows_max_) << batch.rows << " of " << rows << " of " << rows_max_;
  CHECK(placed.empty() || placed.size() == groups_.size());
  stream.Synchronize();  // The pinned arrays are written again.
  const auto place_of = [&](size_t g) { return placed.empty() ? nullptr : &placed[g]; };
  for (size_t g = 0; g < groups_.size(); ++g) RETURN_IF_ERROR(MakeRoom(prepared, place_of(g), &groups_[g]));
  std::copy(batch.dense.begin(), batch.dense.end(), dense_.host.data());
  std::copy(batch.labels.begin(), batch.labels.end(), labels_.host.data());
  samples_.host.data()[0] = batch.rows;
  dense_.Upload(batch.dense.size(), stream);
  // Not those of batches before, which may be as large as an input can be: 0 times infinity is NaN.
  internal::FillDevice(dense_.device.data() + batch.dense.size(), 0,
                       (static_cast<size_t>(rows) * layout_->dense_columns - batch.dense.size()) * sizeof(float),
                       stream);
  labels_.Upload(batch.labels.size(), stream);
  samples_.Upload(1, stream);
  for (size_t g = 0; g < groups_.size(); ++g) LoadGroup(prepared, rows, place_of(g), &groups_[g], stream);
  return absl::OkStatus();
}

absl::Status DeviceBatch::MakeRoomForSums() {
  for (Group& group : groups_) {
    ASSIGN_OR_RETURN(const bool grown, Grow(size_t{group.size.slots} * group.dim, SIZE_MAX,
                                            "the gradients of a batch's rows", &group.sums));
    if (grown) ++generation_;
  }
  return absl::OkStatus();
}

DeviceBags DeviceBatch::Bags(const Group& group, int64_t rows) const {
  return {.offsets = group.offsets.device.data(),
          .index = group.index.device.data(),
          .weights = group.weights.device.size() > 0 ? group.weights.device.data() : nullptr,
          .mean = group.mean.device.data(),
          .features = static_cast<uint32_t>(group.features.size()),
          .samples = static_cast<uint32_t>(rows)};
}

void DeviceBatch::FetchSums(const Stream& stream) {
  for (Group& group : groups_) {
    internal::CopyToHost(group.sums.host.data(), group.sums.device.data(),
                         size_t{group.base.back()} * group.dim * sizeof(float), stream);
  }
}

std::span<const std::span<const float>> DeviceBatch::Sums() {
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.tables.size(); ++i) {
      sums_[group.tables[i]] = {group.sums.host.data() + size_t{group.base[i]} * group.dim,
                                size_t{group.base[i + 1] - group.base[i]} * group.dim};
    }
  }
  return sums_;
}

}  // namespace sparrow
