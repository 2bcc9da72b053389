#ifndef SPARROW_WORKER_DELIMITED_PARSER_H_
#define SPARROW_WORKER_DELIMITED_PARSER_H_

#include <memory>
#include <string>
#include <vector>

#include "worker/delimited_schema.h"
#include "worker/line_parser.h"
#include "worker/not_utf8.h"

namespace sparrow {

// Delimited text by a schema, Criteo's log included. A row that does not fit is InvalidArgument
// "FILE:LINE:FIELD (COLUMN): expected ..., found ...; remedy", fields counted from 1.
class DelimitedParser : public LineParser {
 public:
  // Counts string values that are not UTF-8 in *not_utf8, unless it is null; it outlives the parser.
  explicit DelimitedParser(DelimitedSchema schema, NotUtf8ByColumn* not_utf8 = nullptr);

  absl::Status StartFile(LineReader* lines) override;
  absl::StatusOr<uint64_t> Parse(LineReader* lines, uint64_t n, BatchBuilder* out, BadRows* bad_rows) override;
  // REQUIRES: not_utf8 is null.
  std::unique_ptr<LineParser> Clone() const override;
  uint32_t DenseColumns() const override { return schema_.dense_columns; }
  const std::vector<FeatureShape>& Shapes() const override { return schema_.shapes; }

 private:
  absl::Status ParseLine(absl::string_view line, float* label);
  // Each parses the field that begins at p and returns its end, or null: problem_ says why.
  const char* ParseDense(const char* p, const char* line_end, const DelimitedColumn& column);
  const char* ParseId(const char* p, const char* line_end, const DelimitedColumn& column);
  bool ParseBag(absl::string_view field, const DelimitedColumn& column);
  bool ParseWeighted(absl::string_view text, const DelimitedColumn& column);
  bool ParseOneId(absl::string_view text, const DelimitedColumn& column, uint64_t* id);
  bool Add(const DelimitedColumn& column, uint64_t id);

  bool AtFieldEnd(const char* p, const char* line_end) const { return p == line_end || *p == schema_.delimiter; }
  const char* FieldEnd(const char* p, const char* line_end) const;
  // Both set problem_ and return false.
  bool Fail(absl::string_view expected, absl::string_view found);
  bool FailBounds(uint32_t feature, uint64_t id);
  absl::Status RowError(absl::string_view line, size_t field) const;
  // Of a line whose byte `zero` is 0.
  absl::Status ZeroByteError(absl::string_view line, size_t zero);
  // The field, from 0, that a byte of the line is in.
  size_t FieldAt(absl::string_view line, size_t byte) const;

  void CountNotUtf8(absl::string_view text, const DelimitedColumn& column);

  const DelimitedSchema schema_;
  NotUtf8ByColumn* const not_utf8_;
  std::vector<const DelimitedColumn*> fields_;  // Of the current file; null: passed over.
  LineReader* lines_ = nullptr;
  BatchBuilder* out_ = nullptr;
  std::string problem_;  // Why the last field did not fit.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_DELIMITED_PARSER_H_
