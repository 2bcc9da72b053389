#include "worker/npy_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr uint64_t kBlockBytes = 1 << 20;
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

}  // namespace

absl::StatusOr<std::unique_ptr<NpySource>> NpySource::Open(const v1::DlrmNpy& config,
                                                           std::span<const v1::FeatureConfig> features,
                                                           const std::vector<std::string>& prefixes, StopCheck stop) {
  auto source = std::unique_ptr<NpySource>(new NpySource());
  source->dense_columns_ = config.dense_columns();
  source->stop_ = std::move(stop);
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
    const uint64_t row = row_ - set.first_row;
    const uint64_t row_bytes = set.labels.RowBytes() + set.dense.RowBytes() + set.sparse.RowBytes();
    const uint64_t rows = std::min({n - read, set.Rows() - row, std::max<uint64_t>(1, kBlockBytes / row_bytes)});
    RETURN_IF_ERROR(ReadRows(&set.labels, row, rows, &labels_));
    RETURN_IF_ERROR(ReadRows(&set.dense, row, rows, &dense_));
    RETURN_IF_ERROR(ReadRows(&set.sparse, row, rows, &sparse_));
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
    row_ += rows;
    read += rows;
  }
  return read;
}

std::string NpySource::LastRow() const {
  const Set& set = sets_[set_];
  return absl::StrCat(set.sparse.path, ": row ", row_ - 1 - set.first_row);
}

absl::Status NpySource::ReadRows(File* file, uint64_t row, uint64_t rows, std::vector<char>* to) {
  if (file->fd < 0) {
    file->fd = open(file->path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file->fd < 0) return ErrnoStatus(errno, "open", file->path);
  }
  to->resize(rows * file->RowBytes());
  const uint64_t offset = file->header.data_offset + row * file->RowBytes();
  for (size_t done = 0; done < to->size();) {
    const ssize_t got = pread(file->fd, to->data() + done, to->size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read", file->path);
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(file->path, ": ends at byte ", offset + done, ", but had ",
                                              file->header.Rows(), " rows when it was opened; it was cut meanwhile"));
    }
    done += static_cast<size_t>(got);
    bytes_read_ += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
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
  const int32_t label_value = Element<int32_t>(labels_, i);
  if (label_value != 0 && label_value != 1) return wrong(set.labels, 0, "label 0 or 1", label_value);
  *label = static_cast<float>(label_value);
  for (uint32_t column = 0; column < dense_columns_; ++column) {
    const float value = Element<float>(dense_, i * dense_columns_ + column);
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
      const int64_t id = wide ? Element<int64_t>(sparse_, at) : int64_t{Element<int32_t>(sparse_, at)};
      if (out->AddId(feature, static_cast<uint64_t>(id))) continue;
      return absl::InvalidArgumentError(absl::StrCat(set.sparse.path, ": row ", row, ", column ", column, ": ",
                                                     out->OutOfBounds(feature, static_cast<uint64_t>(id))));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparrow
