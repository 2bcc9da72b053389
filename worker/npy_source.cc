#include "worker/npy_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

// Of a thread: what is read stays in the second-level cache until it is written as columns.
constexpr uint64_t kBlockBytes = 1 << 18;
// The least time that is worth a thread's waking up is about that of so many rows.
constexpr uint64_t kBlockRowsMax = 2048;
constexpr uint64_t kBlocksMax = 256;
constexpr uint64_t kColumnRows = 256;
constexpr uint64_t kColumnsMax = 1 << 20;

std::string ShapeOf(const NpyHeader& header) {
  return header.shape.size() == 1 ? absl::StrCat("[", header.shape[0], "]")
                                  : absl::StrCat("[", header.shape[0], ", ", header.shape[1], "]");
}

const char* NameOf(NpyType type) {
  switch (type) {
    case NpyType::kInt32:
      return "int32";
    case NpyType::kInt64:
      return "int64";
    case NpyType::kUint64:
      return "uint64";
    case NpyType::kFloat32:
      return "float32";
    case NpyType::kFloat64:
      return "float64";
  }
  return "?";
}

template <typename T>
T Element(const std::vector<char>& bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Whether all labels are 0 or 1.
bool LabelsOf(const std::vector<char>& bytes, float* to, uint64_t rows) {
  int32_t bits = 0;
  for (uint64_t i = 0; i < rows; ++i) {
    const int32_t label = Element<int32_t>(bytes, i);
    bits |= label;
    to[i] = static_cast<float>(label);
  }
  return bits == 0 || bits == 1;
}

// The first `bag` of each row's columns, one row after the other.
template <typename T>
void CopyColumns(const char* from, uint64_t columns, uint64_t bag, std::span<uint64_t> to) {
  // A negative id is its two's complement, as in text.
  const auto load = [](const char* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return static_cast<uint64_t>(int64_t{value});
  };
  const uint64_t stride = columns * sizeof(T);
  if (bag == 1) {
    for (uint64_t& id : to) {
      id = load(from);
      from += stride;
    }
    return;
  }
  for (uint64_t i = 0; i < to.size(); from += stride) {
    for (uint64_t k = 0; k < bag; ++k) to[i++] = load(from + k * sizeof(T));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<NpySource>> NpySource::Open(const v1::DlrmNpy& config,
                                                           std::span<const v1::FeatureConfig> features,
                                                           const std::vector<std::string>& prefixes, Options options) {
  auto source = std::unique_ptr<NpySource>(new NpySource(std::move(options)));
  source->dense_columns_ = config.dense_columns();
  uint64_t sparse_columns = 0;
  for (const v1::FeatureConfig& feature : features) {
    if (feature.bag_size() == 0 || feature.bag_size() > kColumnsMax) {
      return absl::InvalidArgumentError(absl::StrCat("feature \"", feature.name(), "\": bag_size ", feature.bag_size(),
                                                     ", expected 1 to ", kColumnsMax));
    }
    if (feature.has_column()) {
      return absl::InvalidArgumentError(absl::StrCat("feature \"", feature.name(), "\": column \"", feature.column(),
                                                     "\" is set, but npy files have no names; features read their "
                                                     "columns in the job's order, so remove it"));
    }
    source->bag_sizes_.push_back(feature.bag_size());
    source->shapes_.push_back({.bag = feature.bag_size() != 1, .weighted = false});
    sparse_columns += feature.bag_size();
  }
  for (const std::string& prefix : prefixes) {
    ASSIGN_OR_RETURN(Set set, source->OpenSet(prefix, sparse_columns));
    set.first_row = source->rows_;
    source->rows_ += set.Rows();
    for (const File* file : {&set.labels, &set.dense, &set.sparse}) source->files_.push_back(file->path);
    source->sets_.push_back(std::move(set));
  }
  return source;
}

NpySource::~NpySource() {
  for (Set& set : sets_) CloseSet(&set);
}

absl::StatusOr<NpySource::Set> NpySource::OpenSet(const std::string& prefix, uint64_t sparse_columns) const {
  Set set;
  const auto open = [&prefix](const char* part, File* file) -> absl::Status {
    file->path = absl::StrCat(prefix, "_", part, ".npy");
    ASSIGN_OR_RETURN(file->header, ReadNpyHeader(file->path));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(open("labels", &set.labels));
  RETURN_IF_ERROR(open("dense", &set.dense));
  RETURN_IF_ERROR(open("sparse", &set.sparse));
  const auto wrong = [](const File& file, const std::string& expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path, ": ", NameOf(file.header.type), " ", ShapeOf(file.header), ", expected ", expected));
  };
  const uint64_t rows = set.Rows();
  if (set.labels.header.type != NpyType::kInt32 || set.labels.header.Columns() != 1) {
    return wrong(set.labels, "int32 [n] or [n, 1]");
  }
  if (set.dense.header.type != NpyType::kFloat32 || set.dense.header.Columns() != dense_columns_) {
    return wrong(set.dense, absl::StrCat("float32 [n, ", dense_columns_, "] (data.dlrm_npy.dense_columns)"));
  }
  const NpyType sparse_type = set.sparse.header.type;
  if ((sparse_type != NpyType::kInt32 && sparse_type != NpyType::kInt64) ||
      set.sparse.header.Columns() != sparse_columns) {
    return wrong(set.sparse, absl::StrCat("int32 or int64 [n, ", sparse_columns, "], the sum of bag_size over ",
                                          bag_sizes_.size(), " features"));
  }
  for (const File* file : {&set.dense, &set.sparse}) {
    if (file->header.Rows() != rows) {
      return absl::InvalidArgumentError(absl::StrCat(file->path, ": ", file->header.Rows(), " rows, but ",
                                                     set.labels.path, " has ", rows,
                                                     "; they are not of one set, make them again"));
    }
  }
  return set;
}

absl::Status NpySource::Check() {
  if (rows_ == 0) {
    return absl::InvalidArgumentError(absl::StrCat(files_[0], ": no rows in any of ", sets_.size(),
                                                   " npy sets, expected at least one; give them rows, or name others"));
  }
  return Restart();
}

absl::Status NpySource::Restart() {
  if (set_ < sets_.size()) CloseSet(&sets_[set_]);
  set_ = 0;
  row_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> NpySource::Skip(uint64_t n) {
  const uint64_t skipped = std::min(n, rows_ - row_);
  row_ += skipped;
  return skipped;
}

absl::StatusOr<uint64_t> NpySource::Read(uint64_t n, BatchBuilder* out, BadRows* bad_rows) {
  uint64_t read = 0;
  while (read < n && row_ < rows_) {
    while (row_ >= sets_[set_].first_row + sets_[set_].Rows()) CloseSet(&sets_[set_++]);
    if (stop_ && stop_()) return absl::CancelledError(absl::StrCat(sets_[set_].labels.path, ": reading was stopped"));
    Set& set = sets_[set_];
    for (File* file : {&set.labels, &set.dense, &set.sparse}) RETURN_IF_ERROR(OpenFile(file));
    const uint64_t row = row_ - set.first_row;
    const uint64_t block = BlockRows(set);
    const uint64_t rows = std::min({n - read, set.Rows() - row, blocks_ * block});
    ASSIGN_OR_RETURN(uint64_t added, AddBlocks(set, row, rows, out));
    blocks_ = added == rows ? std::min(2 * blocks_, kBlocksMax) : 1;
    if (added < rows) {
      const uint64_t wrong = std::min(block, rows - added);
      RETURN_IF_ERROR(AddRows(set, row + added, wrong, out, bad_rows));
      added += wrong;
    }
    row_ += added;
    read += added;
    bytes_read_ += added * (set.labels.RowBytes() + set.dense.RowBytes() + set.sparse.RowBytes());
  }
  return read;
}

uint64_t NpySource::BlockRows(const Set& set) const {
  const uint64_t row_bytes = set.labels.RowBytes() + set.dense.RowBytes() + set.sparse.RowBytes();
  return std::clamp<uint64_t>(kBlockBytes / row_bytes, 1, kBlockRowsMax);
}

absl::StatusOr<uint64_t> NpySource::AddBlocks(const Set& set, uint64_t row, uint64_t rows, BatchBuilder* out) {
  std::vector<uint64_t> ids;
  for (const uint32_t bag_size : bag_sizes_) ids.push_back(rows * bag_size);
  BatchBuilder::Place place;
  RETURN_IF_ERROR(out->AddRows(static_cast<uint32_t>(rows), ids, &place));
  const uint64_t block = BlockRows(set);
  const uint64_t blocks = (rows + block - 1) / block;
  std::atomic<uint64_t> fit{blocks};  // Relaxed: the least number counts, and is read when all have ended.
  team_.Run(blocks, [&](size_t task, int thread) {
    const uint64_t first = task * block;
    if (WriteBlock(set, row + first, std::min(block, rows - first), first, place, out,
                   &rows_of_[static_cast<size_t>(thread)])) {
      return;
    }
    uint64_t least = fit.load(std::memory_order_relaxed);
    while (task < least && !fit.compare_exchange_weak(least, task, std::memory_order_relaxed)) {
    }
  });
  const uint64_t added = std::min(rows, fit.load(std::memory_order_relaxed) * block);
  out->TakeBack(static_cast<uint32_t>(rows - added));
  return added;
}

bool NpySource::WriteBlock(const Set& set, uint64_t row, uint64_t rows, uint64_t first,
                           const BatchBuilder::Place& place, BatchBuilder* out, Rows* buffer) const {
  if (!ReadRows(set, row, rows, buffer).ok()) return false;  // And again, for its error.
  Batch& batch = *out->batch();
  const uint64_t at = place.row + first;
  if (!LabelsOf(buffer->labels, batch.labels.data() + at, rows)) return false;
  buffer->floats.resize(rows * dense_columns_);
  if (dense_columns_ > 0) std::memcpy(buffer->floats.data(), buffer->dense.data(), buffer->dense.size());
  if (!out->Transform(buffer->floats, batch.dense.data() + at * dense_columns_)) return false;
  // A few rows at a time, so that they are in the first-level cache for each of their columns.
  for (uint64_t begin = 0; begin < rows; begin += kColumnRows) {
    if (!WriteIds(set, begin, std::min(kColumnRows, rows - begin), first, place, *buffer, out)) return false;
  }
  return true;
}

bool NpySource::WriteIds(const Set& set, uint64_t begin, uint64_t rows, uint64_t first,
                         const BatchBuilder::Place& place, const Rows& buffer, BatchBuilder* out) const {
  const bool wide = set.sparse.header.type == NpyType::kInt64;
  const uint64_t columns = set.sparse.header.Columns();
  const char* from = buffer.sparse.data() + begin * set.sparse.RowBytes();
  for (uint32_t f = 0; f < bag_sizes_.size(); ++f) {
    const uint64_t bag = bag_sizes_[f];
    const uint64_t at = place.id[f] + (first + begin) * bag;
    SparseFeature& feature = out->batch()->features[f];
    const std::span<uint64_t> ids(feature.ids.data() + at, rows * bag);
    if (wide) {
      CopyColumns<int64_t>(from, columns, bag, ids);
    } else {
      CopyColumns<int32_t>(from, columns, bag, ids);
    }
    if (!out->FoldIds(f, ids)) return false;
    uint32_t* const offsets = feature.offsets.data() + place.row + first + begin + 1;
    for (uint64_t i = 0; i < rows; ++i) offsets[i] = static_cast<uint32_t>(at + (i + 1) * bag);
    from += bag * (wide ? sizeof(int64_t) : sizeof(int32_t));
  }
  return true;
}

absl::Status NpySource::AddRows(const Set& set, uint64_t row, uint64_t rows, BatchBuilder* out, BadRows* bad_rows) {
  RETURN_IF_ERROR(ReadRows(set, row, rows, &rows_of_[0]));
  for (uint64_t i = 0; i < rows; ++i) {
    out->StartRow();
    float label;
    const absl::Status status = AddRow(set, row + i, i, out, &label);
    if (status.ok()) {
      RETURN_IF_ERROR(out->FinishRow(label));
    } else {
      out->DropRow();
      RETURN_IF_ERROR(bad_rows->Add(status));
    }
  }
  return absl::OkStatus();
}

std::string NpySource::LastRow() const {
  const Set& set = sets_[set_];
  return absl::StrCat(set.sparse.path, ": row ", row_ - 1 - set.first_row);
}

absl::Status NpySource::OpenFile(File* file) const {
  if (file->fd >= 0) return absl::OkStatus();
  file->fd = open(file->path.c_str(), O_RDONLY | O_CLOEXEC);
  return file->fd < 0 ? ErrnoStatus(errno, "open", file->path) : absl::OkStatus();
}

absl::Status NpySource::ReadRows(const Set& set, uint64_t row, uint64_t rows, Rows* to) const {
  const auto read = [&](const File& file, std::vector<char>* bytes) -> absl::Status {
    bytes->resize(rows * file.RowBytes());
    const uint64_t offset = file.header.data_offset + row * file.RowBytes();
    for (size_t done = 0; done < bytes->size();) {
      const ssize_t got = pread(file.fd, bytes->data() + done, bytes->size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, "read", file.path);
      if (got == 0) {
        return absl::DataLossError(absl::StrCat(file.path, ": ends at byte ", offset + done, ", but had ",
                                                file.header.Rows(), " rows when it was opened; it was cut meanwhile"));
      }
      done += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(read(set.labels, &to->labels));
  RETURN_IF_ERROR(read(set.dense, &to->dense));
  return read(set.sparse, &to->sparse);
}

void NpySource::CloseSet(Set* set) {
  for (File* file : {&set->labels, &set->dense, &set->sparse}) {
    if (file->fd >= 0) close(std::exchange(file->fd, -1));
  }
}

absl::Status NpySource::AddRow(const Set& set, uint64_t row, uint64_t i, BatchBuilder* out, float* label) const {
  const auto wrong = [row](const File& file, uint64_t column, absl::string_view expected, const auto& found) {
    return absl::InvalidArgumentError(absl::StrCat(file.path, ": row ", row, ", column ", column, ": expected ",
                                                   expected, ", found ", found,
                                                   "; make the file again, or set data.on_bad_row: SKIP"));
  };
  const int32_t label_value = Element<int32_t>(rows_of_[0].labels, i);
  if (label_value != 0 && label_value != 1) return wrong(set.labels, 0, "label 0 or 1", label_value);
  *label = static_cast<float>(label_value);
  for (uint32_t column = 0; column < dense_columns_; ++column) {
    const float value = Element<float>(rows_of_[0].dense, i * dense_columns_ + column);
    if (!std::isfinite(value)) return wrong(set.dense, column, "a finite number", value);
    out->SetDense(column, double{value});
  }
  return AddIds(set, row, i, out);
}

absl::Status NpySource::AddIds(const Set& set, uint64_t row, uint64_t i, BatchBuilder* out) const {
  const uint64_t columns = set.sparse.header.Columns();
  const bool wide = set.sparse.header.type == NpyType::kInt64;
  uint64_t column = 0;
  for (uint32_t feature = 0; feature < bag_sizes_.size(); ++feature) {
    for (uint32_t k = 0; k < bag_sizes_[feature]; ++k, ++column) {
      const uint64_t at = i * columns + column;
      // A negative id is its two's complement, as in text.
      const int64_t id =
          wide ? Element<int64_t>(rows_of_[0].sparse, at) : int64_t{Element<int32_t>(rows_of_[0].sparse, at)};
      if (out->AddId(feature, static_cast<uint64_t>(id))) continue;
      return absl::InvalidArgumentError(absl::StrCat(set.sparse.path, ": row ", row, ", column ", column, ": ",
                                                     out->OutOfBounds(feature, static_cast<uint64_t>(id))));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparrow
