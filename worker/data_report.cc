// FormatReport of worker/data_check.h: the numbers as lines for people.

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "worker/data_check.h"

namespace sparrow {
namespace {

constexpr size_t kFilesShownMax = 10;

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// One width for the names of a table.
template <typename Reports>
int NameWidth(const Reports& reports) {
  size_t width = 7;
  for (const auto& report : reports) width = std::max(width, std::min<size_t>(report.name.size(), 40));
  return static_cast<int>(width);
}

void AppendFiles(const SourceReport& source, std::string* text) {
  for (size_t i = 0; i < std::min(source.files.size(), kFilesShownMax); ++i) {
    absl::StrAppend(text, "  ", source.files[i], "\n");
  }
  if (source.files.size() > kFilesShownMax) {
    absl::StrAppend(text, "  and ", source.files.size() - kFilesShownMax, " more\n");
  }
}

void AppendDense(const SourceReport& source, std::string* text) {
  if (source.dense.empty()) return;
  const int width = NameWidth(source.dense);
  absl::StrAppendFormat(text, "  %-*s %12s %12s %12s %12s %12s\n", width, "dense", "missing", "negative", "min", "max",
                        "mean");
  for (const DenseColumnReport& column : source.dense) {
    absl::StrAppendFormat(text, "  %-*s %12d %12d %12.6g %12.6g %12.6g\n", width, column.name, column.missing,
                          column.negative, column.min, column.max, column.mean);
  }
}

void AppendFeatures(const SourceReport& source, std::string* text) {
  if (source.features.empty()) return;
  const int width = NameWidth(source.features);
  const uint64_t rows = source.rows - source.bad_rows;
  absl::StrAppendFormat(text, "  %-*s %12s %12s %8s %8s %12s %20s %12s\n", width, "feature", "ids", "distinct", "a row",
                        "most", "missing", "max id", "out of table");
  for (const FeatureReport& feature : source.features) {
    const double per_row = rows == 0 ? 0 : static_cast<double>(feature.ids) / static_cast<double>(rows);
    absl::StrAppendFormat(text, "  %-*s %12d %12s %8.2f %8d %12d %20d %12d\n", width, feature.name, feature.ids,
                          absl::StrCat(feature.distinct_exact ? "" : "about ", feature.distinct), per_row,
                          feature.ids_per_row_max, feature.missing, feature.max_id, feature.out_of_bounds);
  }
}

}  // namespace

std::string FormatReport(const DataReport& report) {
  std::string text;
  for (const SourceReport& source : report.sources) {
    const uint64_t used = source.rows - source.bad_rows;
    absl::StrAppend(&text, source.name, ": ", source.rows, " rows in ", source.files.size(),
                    source.files.size() == 1 ? " file" : " files", ", ", FormatBytes(source.file_bytes), " read\n");
    AppendFiles(source, &text);
    absl::StrAppendFormat(&text, "  columns: %s%d dense; %d features\n", source.labelled ? "label, " : "",
                          source.dense.size(), source.features.size());
    if (source.labelled) {
      absl::StrAppendFormat(&text, "  labels: %d ones of %d rows (%.1f %%)\n", source.ones, used,
                            Percent(source.ones, used));
    } else {
      absl::StrAppend(&text, "  labels: none (unlabelled)\n");
    }
    AppendDense(source, &text);
    AppendFeatures(source, &text);
    for (const std::string& problem : source.problems) absl::StrAppend(&text, "  PROBLEM: ", problem, "\n");
    for (const std::string& oddity : source.oddities) absl::StrAppend(&text, "  odd: ", oddity, "\n");
    for (const std::string& example : source.bad_row_examples) {
      absl::StrAppend(&text, "  bad row: ", example, "\n");
    }
  }
  return text;
}

}  // namespace sparrow
