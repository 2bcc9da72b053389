#include "worker/delimited_parser.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "worker/number_parser.h"

namespace sparrow {
namespace {

using Kind = DelimitedColumn::Kind;

// Decimal digits that certainly fit 64 bits.
constexpr int kSafeDigits = 19;

std::string Place(const LineReader& lines) { return absl::StrCat(lines.path(), ":", lines.line_number()); }

}  // namespace

DelimitedParser::DelimitedParser(DelimitedSchema schema, NotUtf8ByColumn* not_utf8)
    : schema_(std::move(schema)), not_utf8_(not_utf8) {
  for (const DelimitedColumn& column : schema_.columns) fields_.push_back(&column);
}

std::unique_ptr<LineParser> DelimitedParser::Clone() const {
  CHECK(not_utf8_ == nullptr);
  auto clone = std::make_unique<DelimitedParser>(schema_);
  clone->fields_.clear();
  for (const DelimitedColumn* field : fields_) {
    clone->fields_.push_back(field == nullptr ? nullptr
                                              : clone->schema_.columns.data() + (field - schema_.columns.data()));
  }
  return clone;
}

absl::Status DelimitedParser::StartFile(LineReader* lines) {
  if (schema_.header == DelimitedSchema::Header::kNone) return absl::OkStatus();
  absl::string_view line;
  if (!lines->Next(&line)) return lines->status();
  const std::string place = Place(*lines);
  if (const size_t zero = ZeroByteIn(*lines, line); zero != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ":", FieldAt(line, zero) + 1, ": the header has a zero byte; ", "is this a text file?"));
  }
  if (schema_.header == DelimitedSchema::Header::kByName) {
    ASSIGN_OR_RETURN(fields_, schema_.BindHeader(line, place));
    return absl::OkStatus();
  }
  const std::vector<absl::string_view> names = absl::StrSplit(line, schema_.delimiter);
  if (names.size() != fields_.size()) {
    return FieldCountError(place, line, schema_, fields_.size());
  }
  float label;
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (fields_[i]->kind == Kind::kLabel && ParseLabel(names[i], &label)) {
      return absl::InvalidArgumentError(absl::StrCat(place, ":", i + 1, " (", fields_[i]->name,
                                                     "): expected a header, found the label ", Quoted(names[i]),
                                                     "; set header: false, or the row would be lost"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DelimitedParser::Parse(LineReader* lines, uint64_t n, BatchBuilder* out, BadRows* bad_rows) {
  lines_ = lines;
  out_ = out;
  return ParseLines(lines, n, out, bad_rows,
                    [this](absl::string_view line, float* label) { return ParseLine(line, label); });
}

absl::Status DelimitedParser::ParseLine(absl::string_view line, float* label) {
  const char* p = line.data();
  const char* const end = p + line.size();
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (i > 0) {
      if (p == end) return RowError(line, i);
      ++p;
    }
    const DelimitedColumn* column = fields_[i];
    const Kind kind = column == nullptr ? Kind::kIgnored : column->kind;
    const char* after;
    switch (kind) {
      case Kind::kIgnored:
        after = FieldEnd(p, end);
        break;
      case Kind::kLabel: {
        after = FieldEnd(p, end);
        const absl::string_view field(p, static_cast<size_t>(after - p));
        if (!ParseLabel(field, label)) {
          const bool like_header =
              lines_->line_number() == 1 && !field.empty() && std::isalpha(static_cast<unsigned char>(field[0])) != 0;
          Fail(like_header ? "label 0 or 1 (a header? set header: true)" : "label 0 or 1", field);
          after = nullptr;
        }
        break;
      }
      case Kind::kDense:
        after = ParseDense(p, end, *column);
        break;
      default:
        after = ParseId(p, end, *column);
    }
    if (after == nullptr) return RowError(line, i);
    p = after;
  }
  if (p != end) return RowError(line, fields_.size());
  const size_t zero = ZeroByteIn(*lines_, line);
  return zero == absl::string_view::npos ? absl::OkStatus() : ZeroByteError(line, zero);
}

const char* DelimitedParser::ParseDense(const char* p, const char* line_end, const DelimitedColumn& column) {
  uint64_t integer;
  const char* const after = ScanDigits(p, &integer);
  if (AtFieldEnd(after, line_end) && after - p <= kSafeDigits) {
    if (after != p) out_->SetDenseInteger(column.dense_index, integer);
    return after;
  }
  const char* const end = FieldEnd(p, line_end);
  const absl::string_view field(p, static_cast<size_t>(end - p));
  double value;
  if (!ParseDecimal(field, &value)) {
    Fail("a decimal number or nothing", field);
    return nullptr;
  }
  out_->SetDense(column.dense_index, value);
  return end;
}

const char* DelimitedParser::ParseId(const char* p, const char* line_end, const DelimitedColumn& column) {
  // One plain id is most of all input.
  if (!column.bag && !column.weighted) {
    uint64_t id;
    if (column.kind == Kind::kHexId && ParseEightHexDigits(p, &id) && AtFieldEnd(p + 8, line_end)) {
      return Add(column, id) ? p + 8 : nullptr;
    }
    if (column.kind == Kind::kIntegerId) {
      const char* const after = ScanDigits(p, &id);
      if (after != p && after - p <= kSafeDigits && AtFieldEnd(after, line_end)) {
        return Add(column, id) ? after : nullptr;
      }
    }
  }
  const char* const end = FieldEnd(p, line_end);
  const absl::string_view field(p, static_cast<size_t>(end - p));
  if (column.bag) return ParseBag(field, column) ? end : nullptr;
  if (column.weighted) return ParseWeighted(field, column) ? end : nullptr;
  uint64_t id = kMissingId;
  if (!field.empty() && !ParseOneId(field, column, &id)) return nullptr;
  return Add(column, id) ? end : nullptr;
}

bool DelimitedParser::ParseBag(absl::string_view field, const DelimitedColumn& column) {
  if (field.empty()) return true;
  for (;;) {
    const size_t at = field.find(column.separator);
    const absl::string_view text = field.substr(0, at);
    if (text.empty()) {
      return Fail(absl::StrCat("an id on each side of ", DelimiterName(column.separator)), field);
    }
    if (column.weighted) {
      if (!ParseWeighted(text, column)) return false;
    } else {
      uint64_t id;
      if (!ParseOneId(text, column, &id) || !Add(column, id)) return false;
    }
    if (at == absl::string_view::npos) return true;
    field.remove_prefix(at + 1);
  }
}

bool DelimitedParser::ParseWeighted(absl::string_view text, const DelimitedColumn& column) {
  double weight = 1;
  absl::string_view id_text = text;
  const size_t at = text.rfind(column.weight_separator);
  if (at != absl::string_view::npos) {
    id_text = text.substr(0, at);
    if (id_text.empty() || !ParseDecimal(text.substr(at + 1), &weight)) {
      return Fail(absl::StrCat("ID", absl::string_view(&column.weight_separator, 1), "WEIGHT"), text);
    }
  }
  uint64_t id = kMissingId;
  if (!id_text.empty() && !ParseOneId(id_text, column, &id)) return false;
  for (const uint32_t feature : column.features) {
    if (!out_->AddWeightedId(feature, id, static_cast<float>(weight))) return FailBounds(feature, id);
  }
  return true;
}

bool DelimitedParser::ParseOneId(absl::string_view text, const DelimitedColumn& column, uint64_t* id) {
  switch (column.kind) {
    case Kind::kHexId:
      return ParseHexId(text, id) || Fail("1 to 16 hex digits", text);
    case Kind::kIntegerId:
      return ParseIntegerId(text, id) || Fail("an integer id, -2^63 to 2^64-1", text);
    default:
      if (not_utf8_ != nullptr) CountNotUtf8(text, column);
      *id = HashBytes(text);
      return true;
  }
}

void DelimitedParser::CountNotUtf8(absl::string_view text, const DelimitedColumn& column) {
  if (Utf8PrefixBytes(text) == text.size()) return;
  NotUtf8& found = (*not_utf8_)[column.name];
  if (found.values++ == 0) found.first = absl::StrCat(Place(*lines_), ": ", Quoted(text));
}

inline bool DelimitedParser::Add(const DelimitedColumn& column, uint64_t id) {
  for (const uint32_t feature : column.features) {
    if (!out_->AddId(feature, id)) return FailBounds(feature, id);
  }
  return true;
}

const char* DelimitedParser::FieldEnd(const char* p, const char* line_end) const {
  const void* found = std::memchr(p, schema_.delimiter, static_cast<size_t>(line_end - p));
  return found == nullptr ? line_end : static_cast<const char*>(found);
}

bool DelimitedParser::Fail(absl::string_view expected, absl::string_view found) {
  problem_ = absl::StrCat("expected ", expected, ", found ", Quoted(found),
                          "; correct the row, or set data.on_bad_row: SKIP to leave such rows out");
  return false;
}

bool DelimitedParser::FailBounds(uint32_t feature, uint64_t id) {
  problem_ = out_->OutOfBounds(feature, id);
  return false;
}

size_t DelimitedParser::FieldAt(absl::string_view line, size_t byte) const {
  return static_cast<size_t>(
      std::count(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(byte), schema_.delimiter));
}

absl::Status DelimitedParser::ZeroByteError(absl::string_view line, size_t zero) {
  const size_t field = FieldAt(line, zero);
  size_t begin = line.rfind(schema_.delimiter, zero);
  begin = begin == absl::string_view::npos ? 0 : begin + 1;
  Fail("text without zero bytes", line.substr(begin, line.find(schema_.delimiter, zero) - begin));
  return RowError(line, field);
}

absl::Status DelimitedParser::RowError(absl::string_view line, size_t field) const {
  const size_t fields = static_cast<size_t>(std::count(line.begin(), line.end(), schema_.delimiter)) + 1;
  if (fields != fields_.size()) {
    // Shifted columns explain any value that does not fit.
    return FieldCountError(Place(*lines_), line, schema_, fields_.size());
  }
  const std::string name = fields_[field] == nullptr ? "" : absl::StrCat(" (", fields_[field]->name, ")");
  return absl::InvalidArgumentError(absl::StrCat(Place(*lines_), ":", field + 1, name, ": ", problem_));
}

}  // namespace sparrow
