#ifndef SPARROW_WORKER_DELIMITED_SCHEMA_H_
#define SPARROW_WORKER_DELIMITED_SCHEMA_H_

// What the columns of delimited text are and where their values go, checked against the job's features.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sparrow/v1/job.pb.h"
#include "worker/batch_builder.h"

namespace sparrow {

struct DelimitedColumn {
  enum class Kind { kIgnored, kLabel, kDense, kIntegerId, kHexId, kStringId };

  std::string name;
  Kind kind = Kind::kIgnored;
  uint32_t dense_index = 0;        // kDense
  std::vector<uint32_t> features;  // Ids: indices of the features that read the column.
  bool bag = false;                // Ids joined by `separator`.
  char separator = 0;
  bool weighted = false;  // Each id may be followed by `weight_separator` and a weight.
  char weight_separator = 0;
};

struct DelimitedSchema {
  enum class Header {
    kNone,
    kByName,   // Names the columns of its file, in any order, among others.
    kByCount,  // Is passed over once its number of columns is checked.
  };

  char delimiter = '\t';
  std::string delimiter_field;  // Of the job, where another delimiter is to be set.
  Header header = Header::kNone;
  std::vector<DelimitedColumn> columns;  // Without a header by name: all columns of the file, in order.
  bool labelled = true;
  uint32_t dense_columns = 0;
  std::vector<FeatureShape> shapes;  // For each feature.

  // For files without the label's column.
  void DropLabel();

  // Columns of the fields of a file whose first line is `header`, for kByName; null: passed over. InvalidArgument names
  // a column that is not there and those that are. `place` is "FILE:1".
  absl::StatusOr<std::vector<const DelimitedColumn*>> BindHeader(absl::string_view header,
                                                                 const std::string& place) const;
};

// InvalidArgument: a column without name or kind, a name used twice, not exactly one label, separators that are not one
// byte or clash, a feature without its column, a categorical column that no feature reads.
absl::StatusOr<DelimitedSchema> MakeSchema(const v1::DelimitedText& text, std::span<const v1::FeatureConfig> features);

// As above, with the columns label, I1 to I13, C1 to C26. Categoricals that no feature reads are passed over.
absl::StatusOr<DelimitedSchema> MakeSchema(const v1::CriteoText& criteo, std::span<const v1::FeatureConfig> features);

// The column or slot that a feature reads.
const std::string& SourceOf(const v1::FeatureConfig& feature);

// "tab", "space", or the byte in quotes.
std::string DelimiterName(char delimiter);

// For a line that does not have the fields of `schema`: 'FILE:7: 39 fields, expected 40 (label missing?)' and, where
// another delimiter fits, which one. `expected`: the fields of the line's file.
absl::Status FieldCountError(const std::string& place, absl::string_view line, const DelimitedSchema& schema,
                             size_t expected);

}  // namespace sparrow

#endif  // SPARROW_WORKER_DELIMITED_SCHEMA_H_
