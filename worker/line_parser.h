#ifndef SPARROW_WORKER_LINE_PARSER_H_
#define SPARROW_WORKER_LINE_PARSER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "worker/bad_rows.h"
#include "worker/batch_builder.h"
#include "worker/line_reader.h"

namespace sparrow {

// Turns the lines of text files into rows. Not thread-safe.
class LineParser {
 public:
  virtual ~LineParser() = default;

  // At the beginning of a file: reads its header line, if the format has one. A file without any line is right: it has
  // no rows.
  virtual absl::Status StartFile(LineReader* lines) = 0;
  // Parses up to n lines of the file last started; returns how many there were. Fewer than n: its end.
  virtual absl::StatusOr<uint64_t> Parse(LineReader* lines, uint64_t n, BatchBuilder* out, BadRows* bad_rows) = 0;

  // One for other lines of the file last started, for another thread.
  virtual std::unique_ptr<LineParser> Clone() const = 0;

  virtual uint32_t DenseColumns() const = 0;
  virtual const std::vector<FeatureShape>& Shapes() const = 0;
};

// The loop of Parse. `parse_line(line, &label)` sets everything of a row but its label in *out.
template <typename ParseLine>
absl::StatusOr<uint64_t> ParseLines(LineReader* lines, uint64_t n, BatchBuilder* out, BadRows* bad_rows,
                                    ParseLine parse_line) {
  uint64_t read = 0;
  for (absl::string_view line; read < n && lines->Next(&line); ++read) {
    out->StartRow();
    float label = 0;
    absl::Status status = parse_line(line, &label);
    if (status.ok()) {
      RETURN_IF_ERROR(out->FinishRow(label));
    } else {
      out->DropRow();
      RETURN_IF_ERROR(bad_rows->Add(status));
    }
  }
  RETURN_IF_ERROR(lines->status());
  return read;
}

// Where a line of the file has a zero byte; npos: nowhere.
inline size_t ZeroByteIn(const LineReader& lines, absl::string_view line) {
  return lines.has_zero_byte() ? line.find('\0') : absl::string_view::npos;
}

// `bytes` in quotes, printable and not too long, for "found ...".
std::string Quoted(absl::string_view bytes);

}  // namespace sparrow

#endif  // SPARROW_WORKER_LINE_PARSER_H_
