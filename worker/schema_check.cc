#include "worker/schema_check.h"

#include <map>
#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/job_layout.h"

namespace sparrow {
namespace {

constexpr uint32_t kCriteoDenseColumns = 13;
constexpr uint32_t kCriteoCategoricalColumns = 26;
constexpr uint32_t kDenseColumnsMax = 1 << 16;

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckShare(const std::string& field, double share) {
  if (share >= 0 && share <= 1) return absl::OkStatus();  // False for NaN.
  return Bad(field, " is ", share, "; a share is between 0 and 1");
}

absl::Status CheckSource(const std::string& field, const v1::DataSource& source) {
  if (source.path().empty()) return Bad(field, ".path is empty; name the files to read, relative to the data root");
  for (int i = 0; i < source.path_size(); ++i) {
    if (source.path(i).empty()) return Bad(field, ".path[", i, "] is \"\"; name a file");
  }
  const v1::RowRange& rows = source.rows();
  if (rows.has_skip_rows() && rows.has_skip_share()) {
    return Bad(field, ".rows has skip_rows ", rows.skip_rows(), " and skip_share ", rows.skip_share(), "; give one");
  }
  if (rows.has_take_rows() && rows.has_take_share()) {
    return Bad(field, ".rows has take_rows ", rows.take_rows(), " and take_share ", rows.take_share(), "; give one");
  }
  RETURN_IF_ERROR(CheckShare(absl::StrCat(field, ".rows.skip_share"), rows.skip_share()));
  return CheckShare(absl::StrCat(field, ".rows.take_share"), rows.take_share());
}

// A delimiter or separator: one byte that does not end lines.
absl::Status CheckByte(const std::string& field, const std::string& byte) {
  if (byte.size() == 1 && byte != "\n" && byte != "\r") return absl::OkStatus();
  return Bad(field, " is \"", absl::CHexEscape(byte), "\"; give one byte that is not a line end");
}

absl::Status CheckDelimited(const v1::DelimitedText& text, std::set<std::string>* categorical) {
  RETURN_IF_ERROR(CheckByte("data.text.delimiter", text.delimiter()));
  if (text.columns().empty()) return Bad("data.text.columns is empty; name the columns of the file");
  std::set<std::string> names;
  int label = -1;
  for (int c = 0; c < text.columns_size(); ++c) {
    const v1::Column& column = text.columns(c);
    const std::string field = absl::StrCat("data.text.columns[", c, "]");
    if (column.name().empty()) return Bad(field, ".name is \"\"; name the column");
    if (!names.insert(column.name()).second) {
      return Bad(field, ".name is \"", column.name(), "\", which an earlier column has; rename one");
    }
    switch (column.kind_case()) {
      case v1::Column::kLabel:
        if (label >= 0) {
          return Bad(field, " (\"", column.name(), "\") is a second label beside column ", label, "; keep one");
        }
        label = c;
        break;
      case v1::Column::kCategorical: {
        categorical->insert(column.name());
        const v1::CategoricalColumn& ids = column.categorical();
        const std::string kind = absl::StrCat(field, ".categorical");
        std::set<std::string> bytes = {text.delimiter()};
        if (ids.has_separator()) {
          RETURN_IF_ERROR(CheckByte(absl::StrCat(kind, ".separator"), ids.separator()));
          if (!bytes.insert(ids.separator()).second) {
            return Bad(kind, ".separator is \"", absl::CHexEscape(ids.separator()),
                       "\", which is the delimiter too; they must differ");
          }
        }
        if (ids.has_weight_separator()) {
          RETURN_IF_ERROR(CheckByte(absl::StrCat(kind, ".weight_separator"), ids.weight_separator()));
          if (!bytes.insert(ids.weight_separator()).second) {
            return Bad(kind, ".weight_separator is \"", absl::CHexEscape(ids.weight_separator()),
                       "\", which is a delimiter or separator too; they must differ");
          }
        }
        break;
      }
      case v1::Column::kDense:
      case v1::Column::kIgnored:
        break;
      case v1::Column::KIND_NOT_SET:
        return Bad(field, " (\"", column.name(), "\") has no kind; give label, dense, categorical or ignored {}");
    }
  }
  if (label < 0) return Bad("data.text.columns has no label; mark one column with label {}");
  return absl::OkStatus();
}

// Every feature has a column among `columns`, and every column a feature.
absl::Status MatchColumns(const v1::Job& job, const std::set<std::string>& columns, bool all_used,
                          const std::string& what) {
  std::set<std::string> used;
  for (int f = 0; f < job.features_size(); ++f) {
    const std::string& column = ColumnNameOf(job.features(f));
    if (columns.count(column) == 0) {
      return Bad("features[", f, "] (\"", job.features(f).name(), "\") reads column \"", column, "\", which is not ",
                 what, "; correct features[", f, "].column or the data's columns");
    }
    used.insert(column);
  }
  if (!all_used) return absl::OkStatus();
  for (const std::string& column : columns) {
    if (used.count(column) > 0) continue;
    return Bad("categorical column \"", column,
               "\" of data.text is read by no feature; mark it ignored {}, or add one");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateData(const v1::Job& job) {
  const v1::DataConfig& data = job.data();
  if (data.has_train()) {
    RETURN_IF_ERROR(CheckSource("data.train", data.train()));
  } else if (job.train().epochs() > 0) {
    return Bad("data.train is not set; name the files to train on");
  }
  if (data.has_test()) RETURN_IF_ERROR(CheckSource("data.test", data.test()));
  if (data.has_dlrm_npy() && (data.train().unlabelled() || data.test().unlabelled())) {
    return Bad("data.", data.train().unlabelled() ? "train" : "test",
               ".unlabelled is true, but a set of dlrm_npy has its PREFIX_labels.npy; remove it");
  }

  if (job.model().has_gpt2() && !data.has_tokens()) {
    return Bad(
        "data.tokens is not set, but model.gpt2 reads nothing else; give data { tokens {} }, and paths of files ",
        "of tokens, which sparrowctl data tokenize makes");
  }

  switch (data.format_case()) {
    case v1::DataConfig::kText: {
      std::set<std::string> categorical;
      RETURN_IF_ERROR(CheckDelimited(data.text(), &categorical));
      return MatchColumns(job, categorical, true, "a categorical column of data.text");
    }
    case v1::DataConfig::kCriteo: {
      RETURN_IF_ERROR(CheckByte("data.criteo.delimiter", data.criteo().delimiter()));
      std::set<std::string> columns;
      for (uint32_t c = 1; c <= kCriteoCategoricalColumns; ++c) columns.insert(absl::StrCat("C", c));
      return MatchColumns(job, columns, false, "one of Criteo's C1 to C26");
    }
    case v1::DataConfig::kSlots: {
      if (data.slots().label_slot().empty()) return Bad("data.slots.label_slot is \"\"; name the slot of the label");
      for (int f = 0; f < job.features_size(); ++f) {
        if (ColumnNameOf(job.features(f)) != data.slots().label_slot()) continue;
        return Bad("features[", f, "] (\"", job.features(f).name(), "\") reads slot \"", data.slots().label_slot(),
                   "\", which carries the label; correct features[", f, "].column or data.slots.label_slot");
      }
      return absl::OkStatus();
    }
    case v1::DataConfig::kDlrmNpy:
      if (data.dlrm_npy().dense_columns() > kDenseColumnsMax) {
        return Bad("data.dlrm_npy.dense_columns is ", data.dlrm_npy().dense_columns(), "; at most ", kDenseColumnsMax);
      }
      return absl::OkStatus();
    case v1::DataConfig::kTokens:
      if (job.model().has_gpt2()) return absl::OkStatus();
      return Bad("data.tokens is set, but only model.gpt2 reads tokens; give text, criteo, slots or dlrm_npy, or ",
                 "model { gpt2 {} }");
    case v1::DataConfig::FORMAT_NOT_SET:
      break;
  }
  return Bad("data has no format; give text, criteo, slots or dlrm_npy");
}

uint32_t DenseColumnCount(const v1::DataConfig& data) {
  switch (data.format_case()) {
    case v1::DataConfig::kText: {
      uint32_t columns = 0;
      for (const v1::Column& column : data.text().columns()) columns += column.has_dense() ? 1 : 0;
      return columns;
    }
    case v1::DataConfig::kCriteo:
      return kCriteoDenseColumns;
    case v1::DataConfig::kDlrmNpy:
      return data.dlrm_npy().dense_columns();
    case v1::DataConfig::kSlots:
    case v1::DataConfig::kTokens:
    case v1::DataConfig::FORMAT_NOT_SET:
      break;
  }
  return 0;
}

}  // namespace sparrow
