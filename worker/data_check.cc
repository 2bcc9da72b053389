#include "worker/data_check.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/bad_rows.h"
#include "worker/batch_builder.h"
#include "worker/column_statistics.h"
#include "worker/delimited_schema.h"
#include "worker/row_range.h"
#include "worker/row_source.h"

namespace sparrow {
namespace {

constexpr uint64_t kBlockRows = 4096;

std::vector<std::string> DenseNames(const v1::DataConfig& data, uint32_t columns) {
  std::vector<std::string> names;
  for (const v1::Column& column : data.text().columns()) {
    if (column.has_dense()) names.push_back(column.name());
  }
  for (uint32_t i = static_cast<uint32_t>(names.size()); i < columns; ++i) {
    names.push_back(data.has_criteo() ? absl::StrCat("I", i + 1) : absl::StrCat("dense ", i));
  }
  return names;
}

uint64_t BoundedRowsOf(const v1::Job& job, const v1::FeatureConfig& feature) {
  const std::string& name = feature.has_table() ? feature.table() : feature.name();
  for (const v1::TableConfig& table : job.tables()) {
    if (table.name() == name) return table.has_bounded_rows() ? table.bounded_rows() : 0;
  }
  return 0;
}

// One pass over one source.
class SourceCheck {
 public:
  SourceCheck(const v1::Job& job, std::string data_root, StopCheck stop)
      : job_(job),
        data_root_(std::move(data_root)),
        stop_(std::move(stop)),
        bad_rows_(v1::DataConfig::SKIP, std::numeric_limits<uint64_t>::max()) {}

  absl::StatusOr<SourceReport> Run(const std::string& name, const v1::DataSource& source);

 private:
  absl::Status Open(const v1::DataSource& source);
  absl::Status ReadAll();
  void AddBatch(const Batch& batch);
  void Describe();
  absl::Status FindProblems();
  // Where the first id of feature `f` is that its table does not have.
  absl::StatusOr<std::string> FirstOutOfBounds(size_t f);
  template <typename Statistics>
  void FindOddities(const char* what, const std::vector<Statistics>& columns, const std::vector<std::string>& names);

  const v1::Job& job_;
  const std::string data_root_;
  const StopCheck stop_;
  NotUtf8ByColumn not_utf8_;  // What source_ counts.
  std::unique_ptr<RowSource> source_;
  std::optional<BatchBuilder> builder_;
  BadRows bad_rows_;
  RowSpan span_;
  std::vector<DenseStatistics> dense_;
  std::vector<FeatureStatistics> features_;
  uint64_t used_rows_ = 0;  // That fit.
  // For each feature, where the block began that has its first id out of bounds.
  struct BlockStart {
    uint64_t rows = 0;
    uint64_t used_rows = 0;
  };
  std::vector<std::optional<BlockStart>> out_of_bounds_blocks_;
  SourceReport report_;
};

absl::StatusOr<SourceReport> SourceCheck::Run(const std::string& name, const v1::DataSource& source) {
  report_.name = name;
  report_.labelled = !source.unlabelled();
  RETURN_IF_ERROR(Annotate(Open(source), absl::StrCat("data.", name)));
  RETURN_IF_ERROR(Annotate(ReadAll(), absl::StrCat("data.", name)));
  Describe();
  RETURN_IF_ERROR(Annotate(FindProblems(), absl::StrCat("data.", name)));
  std::vector<std::string> names;
  for (const DenseColumnReport& column : report_.dense) names.push_back(column.name);
  FindOddities("dense column", dense_, names);
  names.clear();
  for (const FeatureReport& feature : report_.features) names.push_back(feature.name);
  FindOddities("feature", features_, names);
  return std::move(report_);
}

absl::Status SourceCheck::Open(const v1::DataSource& source) {
  RowSourceOptions from;
  from.data_root = data_root_;
  from.data = job_.data();
  from.source = source;
  from.features.assign(job_.features().begin(), job_.features().end());
  from.stop = stop_;
  from.not_utf8 = &not_utf8_;
  ASSIGN_OR_RETURN(source_, OpenRowSource(from));
  RETURN_IF_ERROR(source_->Check());
  std::optional<uint64_t> rows;
  if (source_->CountIsFree() || NeedsCount(source.rows())) {
    ASSIGN_OR_RETURN(rows, source_->CountRows());
  }
  ASSIGN_OR_RETURN(span_, ResolveRange(source.rows(), rows));

  // The values as they are in the file: no transform, no modulo, no bounds.
  BatchBuilderOptions build;
  build.dense_columns = source_->DenseColumns();
  build.dense_transform = v1::DataConfig::IDENTITY;
  build.missing_dense = std::numeric_limits<float>::quiet_NaN();
  build.features = from.features;
  for (v1::FeatureConfig& feature : build.features) feature.clear_modulo();
  build.shapes = source_->Shapes();
  builder_.emplace(std::move(build));

  dense_.resize(source_->DenseColumns());
  out_of_bounds_blocks_.resize(from.features.size());
  for (size_t i = 0; i < from.features.size(); ++i) {
    const v1::FeatureConfig& feature = from.features[i];
    features_.emplace_back(source_->Shapes()[i].bag, feature.has_modulo() ? feature.modulo() : 0,
                           BoundedRowsOf(job_, feature));
  }
  return absl::OkStatus();
}

absl::Status SourceCheck::ReadAll() {
  ASSIGN_OR_RETURN(const uint64_t passed, source_->Skip(span_.first));
  Batch batch;
  while (report_.rows < span_.count) {
    builder_->Begin(&batch);
    ASSIGN_OR_RETURN(const uint64_t got,
                     source_->Read(std::min(kBlockRows, span_.count - report_.rows), &*builder_, &bad_rows_));
    builder_->End();
    if (got == 0) break;
    AddBatch(batch);
    report_.rows += got;
  }
  if (report_.rows == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_->files()[0], ": no row is left after the ", passed, " that `rows` skips; skip less"));
  }
  return absl::OkStatus();
}

void SourceCheck::AddBatch(const Batch& batch) {
  for (uint32_t row = 0; row < batch.rows; ++row) {
    if (batch.labels[row] == 1.0f) ++report_.ones;
    for (size_t c = 0; c < dense_.size(); ++c) dense_[c].Add(batch.dense[row * dense_.size() + c]);
    for (size_t f = 0; f < features_.size(); ++f) {
      const SparseFeature& feature = batch.features[f];
      const uint32_t begin = feature.offsets[row];
      features_[f].Add(std::span(feature.ids).subspan(begin, feature.offsets[row + 1] - begin), used_rows_ + row);
    }
  }
  for (size_t f = 0; f < features_.size(); ++f) {
    std::optional<BlockStart>& block = out_of_bounds_blocks_[f];
    if (!block.has_value() && features_[f].out_of_bounds() > 0) block = {report_.rows, used_rows_};
  }
  used_rows_ += batch.rows;
}

void SourceCheck::Describe() {
  report_.files = source_->files();
  report_.file_bytes = source_->BytesRead();
  report_.bad_rows = bad_rows_.pass_rows();
  report_.bad_row_examples = bad_rows_.examples();
  for (const auto& [column, found] : not_utf8_) {
    report_.oddities.push_back(absl::StrCat("column \"", column, "\": ", found.values,
                                            " value(s) are not UTF-8 (an id is the hash of the bytes), the first ",
                                            found.first));
  }
  const std::vector<std::string> names = DenseNames(job_.data(), source_->DenseColumns());
  for (size_t c = 0; c < dense_.size(); ++c) report_.dense.push_back(dense_[c].Report(names[c]));
  for (size_t f = 0; f < features_.size(); ++f) {
    const v1::FeatureConfig& feature = job_.features(static_cast<int>(f));
    report_.features.push_back(features_[f].Report(feature.name(), SourceOf(feature)));
  }
}

absl::Status SourceCheck::FindProblems() {
  const uint64_t used = report_.rows - report_.bad_rows;
  const bool skip = job_.data().on_bad_row() == v1::DataConfig::SKIP;
  if (report_.bad_rows > 0 && (!skip || report_.bad_rows > job_.data().bad_rows_max())) {
    report_.problems.push_back(
        absl::StrCat(report_.bad_rows, " bad row(s), ",
                     skip ? absl::StrCat("more than data.bad_rows_max ", job_.data().bad_rows_max())
                          : "and data.on_bad_row is STOP"));
  } else if (report_.bad_rows > 0) {
    report_.oddities.push_back(absl::StrCat(report_.bad_rows, " bad row(s), which are left out"));
  }
  if (used == 0) {
    report_.problems.push_back("no row fits");
    return absl::OkStatus();
  }
  if (!report_.labelled) {
    report_.oddities.push_back("unlabelled: for sparrowctl predict; training and evaluation refuse it");
  } else if (report_.ones == 0 || report_.ones == used) {
    report_.oddities.push_back(absl::StrCat("every label is ", report_.ones == 0 ? 0 : 1, ": AUC is undefined"));
  }
  for (size_t f = 0; f < features_.size(); ++f) {
    const FeatureReport& feature = report_.features[f];
    if (feature.out_of_bounds == 0) continue;
    const uint64_t id = features_[f].first_out_of_bounds_id();
    ASSIGN_OR_RETURN(const std::string place, FirstOutOfBounds(f));
    report_.problems.push_back(
        absl::StrCat("feature \"", feature.name, "\": ", feature.out_of_bounds, " id(s) outside its table of ",
                     BoundedRowsOf(job_, job_.features(static_cast<int>(f))), " rows, the first ",
                     id == kMissingId ? std::string("the missing id") : absl::StrCat(id), " at ", place));
  }
  return absl::OkStatus();
}

// Reads its block again, row by row: the first pass reads blocks, which know no lines.
absl::StatusOr<std::string> SourceCheck::FirstOutOfBounds(size_t f) {
  RETURN_IF_ERROR(source_->Restart());
  RETURN_IF_ERROR(source_->Skip(span_.first + out_of_bounds_blocks_[f]->rows).status());
  BadRows bad_rows(v1::DataConfig::SKIP, std::numeric_limits<uint64_t>::max());
  Batch batch;
  for (uint64_t used = out_of_bounds_blocks_[f]->used_rows; used <= features_[f].first_out_of_bounds_row();) {
    builder_->Begin(&batch);
    ASSIGN_OR_RETURN(const uint64_t got, source_->Read(1, &*builder_, &bad_rows));
    builder_->End();
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(source_->files()[0], ": the files were changed while they were read"));
    }
    used += batch.rows;
  }
  return source_->LastRow();
}

template <typename Statistics>
void SourceCheck::FindOddities(const char* what, const std::vector<Statistics>& columns,
                               const std::vector<std::string>& names) {
  if (report_.rows - report_.bad_rows < 2) return;
  absl::flat_hash_map<uint64_t, std::string> first_with;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].Empty()) {
      report_.oddities.push_back(absl::StrCat(what, " \"", names[i], "\" is missing in every row"));
      continue;
    }
    if (columns[i].Constant()) {
      report_.oddities.push_back(absl::StrCat(what, " \"", names[i], "\" has the same value in every row"));
      continue;
    }
    const auto [entry, fresh] = first_with.emplace(columns[i].fingerprint(), names[i]);
    if (fresh) continue;
    report_.oddities.push_back(
        absl::StrCat(what, "s \"", entry->second, "\" and \"", names[i], "\" are equal in every row"));
  }
}

}  // namespace

bool DataReport::HasProblems() const {
  return std::any_of(sources.begin(), sources.end(), [](const SourceReport& s) { return !s.problems.empty(); });
}

absl::StatusOr<DataReport> CheckInput(const v1::Job& job, const std::string& data_root, StopCheck stop) {
  if (!job.data().has_train() && !job.data().has_test()) {
    return absl::InvalidArgumentError("data: neither train nor test; set data.train.path to its files");
  }
  DataReport report;
  if (job.data().has_train()) {
    ASSIGN_OR_RETURN(SourceReport train, SourceCheck(job, data_root, stop).Run("train", job.data().train()));
    report.sources.push_back(std::move(train));
  }
  if (job.data().has_test()) {
    ASSIGN_OR_RETURN(SourceReport test, SourceCheck(job, data_root, stop).Run("test", job.data().test()));
    report.sources.push_back(std::move(test));
  }
  return report;
}

}  // namespace sparrow
