#ifndef SPARROW_WORKER_TEXT_SOURCE_H_
#define SPARROW_WORKER_TEXT_SOURCE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/line_parser.h"
#include "worker/line_reader.h"
#include "worker/row_source.h"

namespace sparrow {

// Rows of text files, one a line, by a parser; one file is open at a time. Not thread-safe.
class TextSource : public RowSource {
 public:
  TextSource(std::vector<std::string> files, std::unique_ptr<LineParser> parser, StopCheck stop);

  absl::Status Check() override;
  absl::Status Restart() override;
  absl::StatusOr<uint64_t> Skip(uint64_t n) override;
  absl::StatusOr<uint64_t> Read(uint64_t n, BatchBuilder* out, BadRows* bad_rows) override;
  std::string LastRow() const override;
  absl::StatusOr<bool> AtEnd() override;
  absl::StatusOr<uint64_t> CountRows() override;
  bool CountIsFree() const override { return counted_rows_.has_value(); }
  uint32_t DenseColumns() const override { return parser_->DenseColumns(); }
  const std::vector<FeatureShape>& Shapes() const override { return parser_->Shapes(); }
  const std::vector<std::string>& files() const override { return files_; }
  uint64_t BytesRead() const override { return closed_bytes_ + (lines_ == nullptr ? 0 : lines_->file_bytes_read()); }

 private:
  // Opens files until one has a line left; false after the last.
  absl::StatusOr<bool> Advance();
  void Close();

  const std::vector<std::string> files_;
  const std::unique_ptr<LineParser> parser_;
  const StopCheck stop_;
  std::unique_ptr<LineReader> lines_;  // Null: between files.
  size_t next_file_ = 0;
  uint64_t closed_bytes_ = 0;  // Read from files that are closed again.
  std::optional<uint64_t> counted_rows_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_TEXT_SOURCE_H_
