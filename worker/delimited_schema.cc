#include "worker/delimited_schema.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

using Kind = DelimitedColumn::Kind;

constexpr size_t kNamesShownMax = 60;
constexpr char kUsualDelimiters[] = {'\t', ',', ';', '|', ' '};

// One byte that cannot be part of a number or end a line.
absl::StatusOr<char> OneByte(absl::string_view what, const std::string& value) {
  const unsigned char byte = value.empty() ? 0 : static_cast<unsigned char>(value[0]);
  if (value.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is \"", absl::CHexEscape(value), "\", ", value.size(),
                                                   " bytes; expected one byte, such as \"\\t\" or \",\""));
  }
  if (std::isalnum(byte) != 0 || byte == '.' || byte == '-' || byte == '\n' || byte == '\r') {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is \"", absl::CHexEscape(value), "\", which can be part of a value or ends a line"));
  }
  return value[0];
}

absl::Status SetKind(const v1::CategoricalColumn& from, char delimiter, DelimitedColumn* column) {
  const std::string what = absl::StrCat("data: column \"", column->name, "\": ");
  switch (from.ids()) {
    case v1::CategoricalColumn::INTEGER:
      column->kind = Kind::kIntegerId;
      break;
    case v1::CategoricalColumn::HEX:
      column->kind = Kind::kHexId;
      break;
    case v1::CategoricalColumn::STRING:
      column->kind = Kind::kStringId;
      break;
  }
  if (from.has_separator()) {
    column->bag = true;
    ASSIGN_OR_RETURN(column->separator, OneByte(absl::StrCat(what, "separator"), from.separator()));
    if (column->separator == delimiter) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, "separator and delimiter are both ", DelimiterName(delimiter)));
    }
  }
  if (from.has_weight_separator()) {
    column->weighted = true;
    ASSIGN_OR_RETURN(column->weight_separator,
                     OneByte(absl::StrCat(what, "weight_separator"), from.weight_separator()));
    if (column->weight_separator == delimiter || (column->bag && column->weight_separator == column->separator)) {
      return absl::InvalidArgumentError(absl::StrCat(what, "weight_separator ", DelimiterName(column->weight_separator),
                                                     " is also the delimiter or separator"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<DelimitedColumn> MakeColumn(const v1::Column& from, char delimiter, uint32_t* dense_columns) {
  DelimitedColumn column;
  column.name = from.name();
  switch (from.kind_case()) {
    case v1::Column::kLabel:
      column.kind = Kind::kLabel;
      break;
    case v1::Column::kDense:
      column.kind = Kind::kDense;
      column.dense_index = (*dense_columns)++;
      break;
    case v1::Column::kCategorical:
      RETURN_IF_ERROR(SetKind(from.categorical(), delimiter, &column));
      break;
    case v1::Column::kIgnored:
      break;
    case v1::Column::KIND_NOT_SET:
      return absl::InvalidArgumentError(absl::StrCat(
          "data: column \"", column.name, "\" has no kind; set one of label {} dense {} categorical {} ignored {}"));
  }
  return column;
}

bool IsIds(const DelimitedColumn& column) {
  return column.kind == Kind::kIntegerId || column.kind == Kind::kHexId || column.kind == Kind::kStringId;
}

std::string NamesOfIdColumns(const DelimitedSchema& schema) {
  std::vector<std::string> names;
  for (const DelimitedColumn& column : schema.columns) {
    if (IsIds(column)) names.push_back(column.name);
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

// Connects features to columns.
absl::Status BindFeatures(std::span<const v1::FeatureConfig> features, DelimitedSchema* schema) {
  absl::flat_hash_map<std::string, DelimitedColumn*> by_name;
  for (DelimitedColumn& column : schema->columns) by_name.emplace(column.name, &column);
  for (size_t i = 0; i < features.size(); ++i) {
    const std::string& source = SourceOf(features[i]);
    const auto found = by_name.find(source);
    if (found == by_name.end() || !IsIds(*found->second)) {
      return absl::InvalidArgumentError(absl::StrCat("feature \"", features[i].name(), "\" reads column \"", source,
                                                     "\", which is ",
                                                     found == by_name.end() ? "not in data" : "not categorical",
                                                     "; categorical columns: ", NamesOfIdColumns(*schema),
                                                     "; set the feature's column to one of them, or add it to data"));
    }
    found->second->features.push_back(static_cast<uint32_t>(i));
    schema->shapes.push_back({found->second->bag, found->second->weighted});
  }
  return absl::OkStatus();
}

std::optional<char> DelimiterWithFields(absl::string_view line, size_t fields, char except) {
  for (const char candidate : kUsualDelimiters) {
    if (candidate == except) continue;
    if (static_cast<size_t>(std::count(line.begin(), line.end(), candidate)) + 1 == fields) return candidate;
  }
  return std::nullopt;
}

std::string Fields(size_t n) { return absl::StrCat(n, n == 1 ? " field" : " fields"); }

std::string SetDelimiter(const DelimitedSchema& schema, char delimiter) {
  const std::string text = absl::CHexEscape(absl::string_view(&delimiter, 1));
  return absl::StrCat("set it with --set '", schema.delimiter_field, "=", text, "', or in the job as \"", text, "\"");
}

}  // namespace

const std::string& SourceOf(const v1::FeatureConfig& feature) {
  return feature.has_column() ? feature.column() : feature.name();
}

std::string DelimiterName(char delimiter) {
  if (delimiter == '\t') return "tab";
  if (delimiter == ' ') return "space";
  return absl::StrCat("\"", absl::CHexEscape(absl::string_view(&delimiter, 1)), "\"");
}

absl::Status FieldCountError(const std::string& place, absl::string_view line, const DelimitedSchema& schema,
                             size_t expected) {
  if (line.empty() && expected != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": the line is empty, expected ", Fields(expected), "; delete it"));
  }
  const size_t found = static_cast<size_t>(std::count(line.begin(), line.end(), schema.delimiter)) + 1;
  const bool missing = schema.labelled && found + 1 == expected;
  const bool unexpected = !schema.labelled && found == expected + 1;
  std::string message = absl::StrCat(
      place, ": ", Fields(found), ", expected ", expected, missing ? " (label missing?)" : "",
      unexpected ? " (a label, though unlabelled is set?)" : "", "; delimiter is ", DelimiterName(schema.delimiter));
  const std::optional<char> better = DelimiterWithFields(line, expected, schema.delimiter);
  if (better.has_value()) {
    absl::StrAppend(&message, ", but ", DelimiterName(*better), " gives ", expected, ": ",
                    SetDelimiter(schema, *better));
  } else if (line.find('"') != absl::string_view::npos) {
    absl::StrAppend(&message,
                    "; the line has quotes, which are not special here: write it without delimiters in values");
  } else {
    absl::StrAppend(&message, "; set delimiter and columns to what the file has",
                    missing ? ", or unlabelled: true for sparrowctl predict if it has no labels" : "",
                    unexpected ? ", or unlabelled: false" : "");
  }
  return absl::InvalidArgumentError(message);
}

void DelimitedSchema::DropLabel() {
  labelled = false;
  std::erase_if(columns, [](const DelimitedColumn& column) { return column.kind == Kind::kLabel; });
}

absl::StatusOr<DelimitedSchema> MakeSchema(const v1::DelimitedText& text, std::span<const v1::FeatureConfig> features) {
  DelimitedSchema schema;
  schema.delimiter_field = "data.text.delimiter";
  ASSIGN_OR_RETURN(schema.delimiter, OneByte(schema.delimiter_field, text.delimiter()));
  schema.header = text.header() ? DelimitedSchema::Header::kByName : DelimitedSchema::Header::kNone;
  absl::flat_hash_map<std::string, int> uses;
  std::vector<std::string> labels;
  for (const v1::Column& from : text.columns()) {
    if (from.name().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.text: column ", schema.columns.size() + 1, " has no name; set name"));
    }
    if (++uses[from.name()] > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.text: column \"", from.name(), "\" is there twice; give each its own name"));
    }
    ASSIGN_OR_RETURN(DelimitedColumn column, MakeColumn(from, schema.delimiter, &schema.dense_columns));
    if (column.kind == Kind::kLabel) labels.push_back(column.name);
    schema.columns.push_back(std::move(column));
  }
  if (labels.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("data.text: ", labels.size(), " label columns (",
                                                   labels.empty() ? "none" : absl::StrJoin(labels, ", "),
                                                   "), expected exactly one; mark it with label {}"));
  }
  RETURN_IF_ERROR(BindFeatures(features, &schema));
  std::vector<std::string> unread;
  for (const DelimitedColumn& column : schema.columns) {
    if (IsIds(column) && column.features.empty()) unread.push_back(column.name);
  }
  if (!unread.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data.text: no feature reads the categorical column(s) ",
                                                   absl::StrJoin(unread, ", "),
                                                   "; add a feature, or mark the column with ignored {}"));
  }
  return schema;
}

absl::StatusOr<DelimitedSchema> MakeSchema(const v1::CriteoText& criteo, std::span<const v1::FeatureConfig> features) {
  constexpr uint32_t kIntegers = 13;
  constexpr uint32_t kCategoricals = 26;
  DelimitedSchema schema;
  schema.delimiter_field = "data.criteo.delimiter";
  ASSIGN_OR_RETURN(schema.delimiter, OneByte(schema.delimiter_field, criteo.delimiter()));
  schema.header = criteo.header() ? DelimitedSchema::Header::kByCount : DelimitedSchema::Header::kNone;
  schema.dense_columns = kIntegers;
  const auto add = [&schema](std::string name, Kind kind) -> DelimitedColumn& {
    DelimitedColumn& column = schema.columns.emplace_back();
    column.name = std::move(name);
    column.kind = kind;
    return column;
  };
  if (criteo.id_column()) add("id", Kind::kIgnored);
  add("label", Kind::kLabel);
  for (uint32_t i = 0; i < kIntegers; ++i) add(absl::StrCat("I", i + 1), Kind::kDense).dense_index = i;
  for (uint32_t i = 0; i < kCategoricals; ++i) add(absl::StrCat("C", i + 1), Kind::kHexId);
  RETURN_IF_ERROR(BindFeatures(features, &schema));
  for (DelimitedColumn& column : schema.columns) {
    if (IsIds(column) && column.features.empty()) column.kind = Kind::kIgnored;
  }
  return schema;
}

absl::StatusOr<std::vector<const DelimitedColumn*>> DelimitedSchema::BindHeader(absl::string_view header_line,
                                                                                const std::string& place) const {
  const std::vector<absl::string_view> names = absl::StrSplit(header_line, delimiter);
  std::vector<const DelimitedColumn*> fields(names.size(), nullptr);
  for (const DelimitedColumn& column : columns) {
    const size_t uses = static_cast<size_t>(std::count(names.begin(), names.end(), column.name));
    if (uses == 1) {
      fields[static_cast<size_t>(std::find(names.begin(), names.end(), column.name) - names.begin())] = &column;
      continue;
    }
    if (uses > 1) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": the header names column \"", column.name, "\" ", uses,
                                                     " times, expected once; rename one of them"));
    }
    std::vector<std::string> shown;
    for (size_t i = 0; i < std::min(names.size(), kNamesShownMax); ++i) {
      shown.push_back(absl::CHexEscape(names[i].substr(0, 64)));
    }
    if (names.size() > shown.size()) shown.push_back("...");
    std::string message = absl::StrCat(place, ": the header has no column \"", column.name, "\"; it has ",
                                       Fields(names.size()), ": ", absl::StrJoin(shown, ", "));
    if (names.size() == 1) {
      const std::optional<char> better = [&]() -> std::optional<char> {
        for (const char candidate : kUsualDelimiters) {
          const std::vector<absl::string_view> parts = absl::StrSplit(header_line, candidate);
          if (candidate != delimiter && std::count(parts.begin(), parts.end(), column.name) == 1) return candidate;
        }
        return std::nullopt;
      }();
      absl::StrAppend(&message, "; delimiter is ", DelimiterName(delimiter));
      if (better.has_value()) {
        absl::StrAppend(&message, ", but ", DelimiterName(*better),
                        " gives the column: ", SetDelimiter(*this, *better));
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat(message, "; name the column as the file does, or set header: false if it has none"));
  }
  return fields;
}

}  // namespace sparrow
