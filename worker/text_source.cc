#include "worker/text_source.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {

TextSource::TextSource(std::vector<std::string> files, std::unique_ptr<LineParser> parser, StopCheck stop)
    : files_(std::move(files)), parser_(std::move(parser)), stop_(std::move(stop)) {}

absl::Status TextSource::Check() {
  bool found = false;
  for (const std::string& file : files_) {
    ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> lines, LineReader::Open(file, stop_));
    RETURN_IF_ERROR(parser_->StartFile(lines.get()));
    if (!found) found = !lines->AtEnd();
    RETURN_IF_ERROR(lines->status());
  }
  if (!found) {
    return absl::InvalidArgumentError(
        absl::StrCat(files_[0], ": no rows in ",
                     files_.size() == 1 ? "this file" : absl::StrCat("this and ", files_.size() - 1, " more files"),
                     " (empty, or a header only), expected at least one; give it rows, or name another file"));
  }
  return Restart();
}

absl::Status TextSource::Restart() {
  Close();
  next_file_ = 0;
  return absl::OkStatus();
}

void TextSource::Close() {
  if (lines_ != nullptr) closed_bytes_ += lines_->file_bytes_read();
  lines_.reset();
}

absl::StatusOr<bool> TextSource::Advance() {
  for (;;) {
    if (lines_ != nullptr) {
      if (!lines_->AtEnd()) return true;
      RETURN_IF_ERROR(lines_->status());
      Close();
    }
    if (next_file_ == files_.size()) return false;
    ASSIGN_OR_RETURN(lines_, LineReader::Open(files_[next_file_], stop_));
    ++next_file_;
    RETURN_IF_ERROR(parser_->StartFile(lines_.get()));
  }
}

absl::StatusOr<uint64_t> TextSource::Skip(uint64_t n) {
  uint64_t skipped = 0;
  while (skipped < n) {
    ASSIGN_OR_RETURN(const bool more, Advance());
    if (!more) break;
    skipped += lines_->Skip(n - skipped);
    RETURN_IF_ERROR(lines_->status());
  }
  return skipped;
}

absl::StatusOr<uint64_t> TextSource::Read(uint64_t n, BatchBuilder* out, BadRows* bad_rows) {
  uint64_t read = 0;
  while (read < n) {
    ASSIGN_OR_RETURN(const bool more, Advance());
    if (!more) break;
    ASSIGN_OR_RETURN(const uint64_t some, parser_->Parse(lines_.get(), n - read, out, bad_rows));
    read += some;
  }
  return read;
}

std::string TextSource::LastRow() const { return absl::StrCat(lines_->path(), ":", lines_->line_number()); }

absl::StatusOr<bool> TextSource::AtEnd() {
  ASSIGN_OR_RETURN(const bool more, Advance());
  return !more;
}

absl::StatusOr<uint64_t> TextSource::CountRows() {
  if (counted_rows_.has_value()) return *counted_rows_;
  uint64_t rows = 0;
  for (const std::string& file : files_) {
    ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> lines, LineReader::Open(file, stop_));
    RETURN_IF_ERROR(parser_->StartFile(lines.get()));
    rows += lines->Skip(std::numeric_limits<uint64_t>::max());
    RETURN_IF_ERROR(lines->status());
  }
  counted_rows_ = rows;
  RETURN_IF_ERROR(Restart());  // The parser is bound to the last file now.
  return rows;
}

}  // namespace sparrow
