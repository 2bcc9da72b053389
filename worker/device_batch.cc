#include "worker/device_batch.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
#include "base/parallel.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr size_t kLookupsMax = (size_t{1} << 31) - 1;  // Of the kernels.
constexpr int64_t kGrainLookups = 16384;               // Of a thread, at least.
constexpr int64_t kGrainRows = 4096;

// Room for `size` elements, and for some more, size_max at most, if it has to be allocated anew; counts that.
template <typename T>
absl::Status Grow(size_t size, size_t size_max, absl::string_view what, Mirror<T>* mirror, uint64_t* allocations) {
  if (mirror->device.size() >= size) return absl::OkStatus();
  *mirror = Mirror<T>::Empty();  // The old arrays are freed first: there may not be memory for both.
  ASSIGN_OR_RETURN(*mirror, Mirror<T>::Make(std::max(size, std::min(size + size / 4 + 1, size_max)), what));
  ++*allocations;
  return absl::OkStatus();
}

// Copies that are made together, on as many threads as it pays for: those of one feature alone are short.
class Copies {
 public:
  template <typename T>
  void Add(const std::vector<T>& from, T* to) {
    const int64_t bytes = static_cast<int64_t>(from.size() * sizeof(T));
    if (bytes == 0) return;
    parts_.push_back({reinterpret_cast<const char*>(from.data()), reinterpret_cast<char*>(to), end_, end_ + bytes});
    end_ += bytes;
  }

  void Make(TaskPool* copiers) const {
    const int64_t pieces = (end_ + kPieceBytes - 1) / kPieceBytes;
    copiers->Run(static_cast<size_t>(pieces), UsableThreads(), [&](size_t piece) {
      const int64_t begin = static_cast<int64_t>(piece) * kPieceBytes;
      const int64_t end = std::min(end_, begin + kPieceBytes);
      for (const Part& part : parts_) {
        const int64_t first = std::max(begin, part.begin), last = std::min(end, part.end);
        if (first >= last) continue;
        std::memcpy(part.to + (first - part.begin), part.from + (first - part.begin),
                    static_cast<size_t>(last - first));
      }
    });
  }

 private:
  static constexpr int64_t kPieceBytes = 256 << 10;  // That a thread copies at a time.
  struct Part {
    const char* from;
    char* to;
    int64_t begin, end;  // Among all bytes.
  };
  std::vector<Part> parts_;
  int64_t end_ = 0;
};

}  // namespace

std::vector<std::vector<uint32_t>> DeviceBatch::GroupsByDim(const JobLayout& layout) {
  std::map<uint32_t, std::vector<uint32_t>> groups;
  for (uint32_t t = 0; t < layout.tables.size(); ++t) groups[layout.tables[t].dim].push_back(t);
  std::vector<std::vector<uint32_t>> result;
  for (auto& [dim, tables] : groups) result.push_back(std::move(tables));
  return result;
}

absl::StatusOr<std::unique_ptr<DeviceBatch>> DeviceBatch::Make(const JobLayout* layout,
                                                               const std::vector<std::vector<uint32_t>>& table_groups,
                                                               int64_t rows_max, const Stream* stream) {
  std::unique_ptr<DeviceBatch> batch(new DeviceBatch(layout, rows_max, stream));
  const size_t rows = static_cast<size_t>(rows_max);
  for (const std::vector<uint32_t>& tables : table_groups) {
    ASSIGN_OR_RETURN(Group group, batch->MakeGroup(tables));
    batch->groups_.push_back(std::move(group));
  }
  for (Input& input : batch->inputs_) {
    input.number = static_cast<int>(&input - batch->inputs_.data());
    ASSIGN_OR_RETURN(input.dense, Mirror<float>::Make(rows * layout->dense_columns, "a batch's dense inputs"));
    ASSIGN_OR_RETURN(input.labels, Mirror<float>::Make(rows, "a batch's labels"));
    ASSIGN_OR_RETURN(input.samples, Mirror<uint32_t>::Make(1, "a batch's number of rows"));
    // What lies behind a batch's own rows must be finite.
    input.dense.device.Fill(0, *stream);
    input.labels.device.Fill(0, *stream);
    input.groups.resize(table_groups.size());
    for (size_t g = 0; g < table_groups.size(); ++g) {
      ASSIGN_OR_RETURN(input.groups[g].offsets,
                       Mirror<uint32_t>::Make(batch->groups_[g].features.size() * rows + 1, "the offsets of bags"));
    }
  }
  stream->Synchronize();  // Others write to the inputs too.
  batch->sums_.resize(layout->tables.size());
  return batch;
}

absl::StatusOr<DeviceBatch::Group> DeviceBatch::MakeGroup(const std::vector<uint32_t>& tables) const {
  Group group;
  group.tables = tables;
  group.dim = group.size.dim = layout_->tables[tables[0]].dim;
  group.padded_dim = (group.dim + 3) / 4 * 4;
  for (const uint32_t t : tables) {
    CHECK_EQ(layout_->tables[t].dim, group.dim);
    const std::vector<uint32_t>& features = layout_->tables[t].features;
    group.features.insert(group.features.end(), features.begin(), features.end());
  }
  group.columns_ascend = std::is_sorted(group.features.begin(), group.features.end());
  const size_t n = group.features.size();
  if (n * static_cast<size_t>(rows_max_) > kLookupsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", rows_max_, " rows has ",
                                                   n * static_cast<size_t>(rows_max_), " bags of dimension ", group.dim,
                                                   ", the limit is ", kLookupsMax, "; make the batch smaller"));
  }
  ASSIGN_OR_RETURN(group.columns, Mirror<uint32_t>::Make(n, "the columns of features"));
  ASSIGN_OR_RETURN(group.mean, Mirror<uint8_t>::Make(n, "the pooling of features"));
  ASSIGN_OR_RETURN(group.table_of, Mirror<uint32_t>::Make(n, "the tables of features"));
  group.columns_divide_by_4 = true;
  bool bounded = true;
  size_t ids_max = 0;  // Of a sample.
  for (size_t i = 0; i < n; ++i) {
    const JobLayout::Feature& feature = layout_->features[group.features[i]];
    bounded = bounded && feature.ids_max > 0;
    ids_max += feature.ids_max;
    group.any_mean = group.any_mean || feature.pooling == Pooling::kMean;
    group.columns.host.data()[i] = feature.column;
    group.mean.host.data()[i] = feature.pooling == Pooling::kMean ? 1 : 0;
    group.table_of.host.data()[i] = feature.table;
    group.columns_divide_by_4 = group.columns_divide_by_4 && feature.column % 4 == 0;
  }
  group.lookups_max = bounded ? std::min(kLookupsMax, ids_max * static_cast<size_t>(rows_max_)) : kLookupsMax;
  group.columns.Upload(n, stream_);
  group.mean.Upload(n, stream_);
  group.table_of.Upload(n, stream_);
  return group;
}

void DeviceBatch::Place(size_t group, const DeviceRecords& records, uint32_t slots_end) {
  groups_[group].records.emplace(records);
  groups_[group].size.slots = slots_end;
}

void DeviceBatch::PlaceForSums(size_t group, const DeviceRecords& records, uint32_t rows_max) {
  Place(group, records, rows_max);
  groups_[group].summed = true;
}

absl::Status DeviceBatch::Load(const PreparedBatch& prepared, int64_t rows, const Stream& copies) {
  const Batch& batch = prepared.batch;
  CHECK(batch.rows <= rows && rows <= rows_max_) << batch.rows << " of " << rows << " of " << rows_max_;
  last_ = 1 - last_;
  Input& input = inputs_[last_];
  input.rows = rows;
  input.one_hot = IsOneHot(batch, rows);
  for (size_t g = 0; g < groups_.size(); ++g) {
    RETURN_IF_ERROR(MakeRoomForLookups(prepared, groups_[g], &input.groups[g]));
  }
  CopyInput(batch, &input);
  input.samples.host.data()[0] = batch.rows;
  input.dense.Upload(batch.dense.size(), copies);
  // Not those of batches before, which may be as large as an input can be: 0 times infinity is NaN.
  internal::FillDevice(input.dense.device.data() + batch.dense.size(), 0,
                       (static_cast<size_t>(rows) * layout_->dense_columns - batch.dense.size()) * sizeof(float),
                       copies);
  input.labels.Upload(batch.labels.size(), copies);
  input.samples.Upload(1, copies);
  for (size_t g = 0; g < groups_.size(); ++g) LoadLookups(prepared, input, groups_[g], &input.groups[g], copies);
  input.loaded.Record(copies);
  return absl::OkStatus();
}

absl::Status DeviceBatch::MakeRoomForLookups(const PreparedBatch& prepared, const Group& group, Lookups* lookups) {
  size_t count = 0;
  bool weighted = lookups->weights.device.size() > 0;
  for (const uint32_t f : group.features) {
    count += prepared.batch.features[f].ids.size();
    weighted = weighted || !prepared.batch.features[f].weights.empty();
  }
  if (count > kLookupsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a batch has ", count, " look-ups of dimension ", group.dim,
                                                   ", the limit is ", kLookupsMax, "; make the batch smaller"));
  }
  lookups->count = static_cast<uint32_t>(count);
  RETURN_IF_ERROR(Grow(count, group.lookups_max, "the look-ups of a batch", &lookups->index, &generation_));
  // As many as there is room for: what a graph is recorded with reads no further.
  if (weighted) {
    RETURN_IF_ERROR(Grow(lookups->index.device.size(), group.lookups_max, "the weights of a batch's look-ups",
                         &lookups->weights, &generation_));
  }
  if (group.summed && lookups->rows.size() < lookups->index.device.size()) {
    lookups->rows = *DeviceBuffer<uint32_t>::Allocate(0);
    ASSIGN_OR_RETURN(lookups->rows,
                     AllocateOnDevice<uint32_t>(lookups->index.device.size(), "the rows of a batch's look-ups"));
    ++generation_;
  }
  if (group.records.has_value()) {
    return Grow(lookups->index.device.size(), group.lookups_max, "the keys of a batch's look-ups", &lookups->keys,
                &generation_);
  }
  lookups->base.assign(1, 0);
  for (const uint32_t t : group.tables) {
    const size_t end = lookups->base.back() + prepared.tables[t].unique().size();
    if (end >= UINT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat("a batch reads ", end, " different rows of dimension ", group.dim,
                                                     ", the limit is ", UINT32_MAX - 1, "; make the batch smaller"));
    }
    lookups->base.push_back(static_cast<uint32_t>(end));
  }
  return absl::OkStatus();
}

bool DeviceBatch::HasRoom(const PreparedBatch& prepared) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Lookups& lookups = inputs_[1 - last_].groups[g];
    const size_t room = lookups.index.device.size();
    size_t count = 0;
    bool weighted = lookups.weights.device.size() > 0;
    for (const uint32_t f : groups_[g].features) {
      count += prepared.batch.features[f].ids.size();
      weighted = weighted || !prepared.batch.features[f].weights.empty();
    }
    if (count > room || (weighted && lookups.weights.device.size() < room)) return false;
    if (groups_[g].records.has_value() && lookups.keys.device.size() < room) return false;
  }
  return true;
}

bool DeviceBatch::IsOneHot(const Batch& batch, int64_t rows) const {
  if (batch.rows != rows) return false;
  for (size_t f = 0; f < batch.features.size(); ++f) {
    const SparseFeature& sparse = batch.features[f];
    if (layout_->features[f].ids_max != 1 || sparse.ids.size() != batch.rows || !sparse.weights.empty()) return false;
  }
  return true;
}

// What goes to the GPU as it is.
void DeviceBatch::CopyInput(const Batch& batch, Input* input) {
  Copies copies;
  copies.Add(batch.dense, input->dense.host.data());
  copies.Add(batch.labels, input->labels.host.data());
  for (size_t g = 0; g < groups_.size(); ++g) {
    Lookups& lookups = input->groups[g];
    size_t first = 0;
    for (const uint32_t f : groups_[g].features) {
      const SparseFeature& sparse = batch.features[f];
      if (groups_[g].records.has_value()) copies.Add(sparse.ids, lookups.keys.host.data() + first);
      if (!sparse.weights.empty()) {
        copies.Add(sparse.weights, lookups.weights.host.data() + first);
      } else if (lookups.weights.device.size() > 0) {
        std::fill_n(lookups.weights.host.data() + first, sparse.ids.size(), 1.0f);
      }
      first += sparse.ids.size();
    }
  }
  copies.Make(&copiers_);
}

void DeviceBatch::LoadLookups(const PreparedBatch& prepared, const Input& input, const Group& group, Lookups* lookups,
                              const Stream& copies) const {
  LoadOffsets(prepared.batch, input, group, lookups, copies);
  if (group.records.has_value()) {
    lookups->keys.Upload(lookups->count, copies);
  } else {
    LoadSlots(prepared, group, lookups, copies);
  }
  if (lookups->weights.device.size() > 0) lookups->weights.Upload(lookups->count, copies);
}

void DeviceBatch::LoadOffsets(const Batch& batch, const Input& input, const Group& group, Lookups* lookups,
                              const Stream& copies) const {
  const size_t rows = static_cast<size_t>(input.rows);
  const size_t n = group.features.size() * rows + 1;
  uint32_t* const offsets = lookups->offsets.host.data();
  if (input.one_hot && n <= lookups->counted) return;
  lookups->counted = input.one_hot ? n : 0;
  if (input.one_hot) {
    std::iota(offsets, offsets + n, 0);
  } else {
    uint32_t first = 0;
    for (size_t i = 0; i < group.features.size(); ++i) {
      const SparseFeature& sparse = batch.features[group.features[i]];
      uint32_t* const to = offsets + i * rows;
      ParallelFor(batch.rows, kGrainLookups, [&](int64_t begin, int64_t end) {
        for (int64_t s = begin; s < end; ++s) to[s] = first + sparse.offsets[s];
      });
      first += static_cast<uint32_t>(sparse.ids.size());
      std::fill(to + batch.rows, to + rows, first);
    }
    offsets[n - 1] = first;
  }
  lookups->offsets.Upload(n, copies);
}

void DeviceBatch::LoadSlots(const PreparedBatch& prepared, const Group& group, Lookups* lookups,
                            const Stream& copies) const {
  uint32_t* slots = lookups->index.host.data();
  for (const uint32_t f : group.features) {
    const std::vector<uint32_t>& index = prepared.index[f];
    const auto table = std::find(group.tables.begin(), group.tables.end(), layout_->features[f].table);
    const uint32_t base = lookups->base[table - group.tables.begin()];
    const int64_t count = static_cast<int64_t>(prepared.batch.features[f].ids.size());
    ParallelFor(count, kGrainLookups, [&](int64_t begin, int64_t end) {
      for (int64_t l = begin; l < end; ++l) slots[l] = base + index[l];
    });
    slots += count;
  }
  lookups->index.Upload(lookups->count, copies);
}

absl::Status DeviceBatch::MakeRoomForRows() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    if (group.records.has_value()) continue;
    RETURN_IF_ERROR(Grow(size_t{input().groups[g].base.back()} * group.padded_dim, SIZE_MAX, "the rows of a batch",
                         &group.rows, &generation_));
  }
  return absl::OkStatus();
}

absl::Status DeviceBatch::MakeRoom(bool with_sums) {
  RETURN_IF_ERROR(MakeRoomForRows());
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    const Lookups& lookups = input().groups[g];
    const size_t room = lookups.index.device.size();
    const size_t slots = group.records.has_value() ? group.size.slots : group.rows.device.size() / group.padded_dim;
    if (group.workspace.size() == 0 || room > group.size.lookups || slots > group.size.slots) {
      group.size.lookups = std::max(group.size.lookups, static_cast<uint32_t>(room));
      group.size.slots = std::max(group.size.slots, static_cast<uint32_t>(slots));
      group.workspace = *DeviceBuffer<char>::Allocate(0);
      ASSIGN_OR_RETURN(group.workspace, AllocateOnDevice<char>(SparseUpdateWorkspaceBytes(group.size),
                                                               "the sorting of a batch's look-ups"));
      ++generation_;
    }
    if (!with_sums) continue;
    RETURN_IF_ERROR(Grow(size_t{group.size.slots} * group.dim, SIZE_MAX, "the gradients of a batch's rows", &group.sums,
                         &generation_));
  }
  return absl::OkStatus();
}

void DeviceBatch::FillRows(const PreparedBatch& prepared) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    const Lookups& lookups = input().groups[g];
    for (size_t i = 0; !group.records.has_value() && i < group.tables.size(); ++i) {
      const std::span<const float> from = prepared.rows[group.tables[i]];
      float* const to = group.rows.host.data() + size_t{lookups.base[i]} * group.padded_dim;
      ParallelFor(lookups.base[i + 1] - lookups.base[i], kGrainRows, [&](int64_t begin, int64_t end) {
        if (group.padded_dim == group.dim) {
          std::memcpy(to + begin * group.dim, from.data() + begin * group.dim,
                      static_cast<size_t>(end - begin) * group.dim * sizeof(float));
          return;
        }
        for (int64_t r = begin; r < end; ++r) {
          std::copy_n(from.data() + r * group.dim, group.dim, to + r * group.padded_dim);
        }
      });
    }
  }
}

void DeviceBatch::UploadRows() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    if (group.records.has_value()) continue;
    group.rows.Upload(size_t{input().groups[g].base.back()} * group.padded_dim, stream_);
  }
}

DeviceBags DeviceBatch::Bags(size_t g, const Input& input) const {
  const Group& group = groups_[g];
  const Lookups& lookups = input.groups[g];
  return {.offsets = lookups.offsets.device.data(),
          .index = lookups.index.device.data(),
          .weights = input.one_hot || lookups.weights.device.size() == 0 ? nullptr : lookups.weights.device.data(),
          .mean = input.one_hot || !group.any_mean ? nullptr : group.mean.device.data(),
          .features = static_cast<uint32_t>(group.features.size()),
          .samples = static_cast<uint32_t>(input.rows),
          .lookups = lookups.count};
}

DeviceBags DeviceBatch::SumBags(size_t g, const Input& input) const {
  DeviceBags bags = Bags(g, input);
  if (groups_[g].summed) bags.index = input.groups[g].rows.data();
  return bags;
}

DeviceRows DeviceBatch::Rows(size_t g) const {
  const Group& group = groups_[g];
  if (group.records.has_value()) return group.records->Rows();
  return {.data = reinterpret_cast<const char*>(group.rows.device.data()),
          .slot_bytes = group.padded_dim * sizeof(float),
          .dim = group.dim};
}

DevicePooled DeviceBatch::Pooled(size_t g, const DeviceMatrix& vectors, Precision precision) const {
  const ElementType type = ElementBytes(precision) == 4        ? ElementType::kFloat32
                           : precision == Precision::kBfloat16 ? ElementType::kBfloat16
                                                               : ElementType::kFloat16;
  return {.values = vectors.data,
          .type = type,
          .columns = groups_[g].columns.device.data(),
          .stride = static_cast<uint32_t>(vectors.stride),
          .columns_divide_by_4 = groups_[g].columns_divide_by_4};
}

void DeviceBatch::Pool(const Input& input, const DeviceMatrix& vectors, Precision precision) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    BagsForwardGpu(Bags(g, input), Rows(g), Pooled(g, vectors, precision), stream_);
  }
}

void DeviceBatch::FetchSums() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    const std::vector<uint32_t>& base = input().groups[g].base;
    const size_t first = size_t{base.front()} * group.dim;
    internal::CopyToHost(group.sums.host.data() + first, group.sums.device.data() + first,
                         (size_t{base.back()} * group.dim - first) * sizeof(float), stream_);
  }
}

std::span<const std::span<const float>> DeviceBatch::Sums(const Input& input) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    const std::vector<uint32_t>& base = input.groups[g].base;
    for (size_t i = 0; i < group.tables.size(); ++i) {
      sums_[group.tables[i]] = {group.sums.host.data() + size_t{base[i]} * group.dim,
                                size_t{base[i + 1] - base[i]} * group.dim};
    }
  }
  return sums_;
}

}  // namespace sparrow
