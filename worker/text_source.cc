#include "worker/text_source.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"

namespace sparrow {

namespace {

// Of a piece: long enough for a thread to wake up for, short enough for the second-level cache.
constexpr size_t kPieceBytes = 1 << 17;
constexpr size_t kPiecesOfThread = 8;
constexpr size_t kBytesMax = 16 << 20;  // Of all pieces, but for the last line.
// Fewer lines are parsed sooner than threads wake up.
constexpr uint64_t kLinesMin = 256;

}  // namespace

struct TextSource::Piece {
  explicit Piece(const BatchBuilder& like) : builder(like.options()) {}

  LineChunk lines;
  BatchBuilder builder;
  Batch rows;
  std::unique_ptr<LineParser> parser;
  uint64_t parser_opened = 0;  // Value of opened_ that the parser is for.
  absl::Status status;         // Other than of rows that do not fit.
  std::vector<absl::Status> bad_rows;
  BatchBuilder::Place place;
};

TextSource::TextSource(std::vector<std::string> files, std::unique_ptr<LineParser> parser, Options options)
    : files_(std::move(files)), parser_(std::move(parser)), stop_(std::move(options.stop)), team_(options.threads) {}

TextSource::~TextSource() = default;

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
    ++opened_;
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
    const bool alone = team_.threads() == 1 || n - read < kLinesMin;
    ASSIGN_OR_RETURN(const uint64_t some, alone ? parser_->Parse(lines_.get(), n - read, out, bad_rows)
                                                : ReadPieces(n - read, out, bad_rows));
    read += some;
  }
  return read;
}

absl::StatusOr<uint64_t> TextSource::ReadPieces(uint64_t n, BatchBuilder* out, BadRows* bad_rows) {
  if (pieces_of_ != out) pieces_.clear();
  pieces_of_ = out;
  while (pieces_.size() < kPiecesOfThread * static_cast<size_t>(team_.threads())) {
    pieces_.push_back(std::make_unique<Piece>(*out));
  }
  absl::Mutex mu;
  size_t taken = 0;  // Guarded by mu, as all here: pieces whose lines are there,
  size_t begun = 0;  // and those that somebody parses, or has.
  bool all_taken = false;
  uint64_t lines = 0;
  const auto take = [&] {
    size_t count = 0;
    size_t bytes = 0;  // Lines may be so long that all pieces together would be too much.
    for (uint64_t left = n; left > 0 && count < pieces_.size() && bytes < kBytesMax; ++count) {
      const uint64_t got = lines_->Take(left, kPieceBytes, &pieces_[count]->lines);
      if (got == 0) break;
      left -= got;
      lines += got;
      bytes += pieces_[count]->lines.size;
      absl::MutexLock lock(&mu);
      taken = count + 1;
    }
    absl::MutexLock lock(&mu);
    all_taken = true;
  };
  const auto parse = [&] {
    for (;;) {
      Piece* piece;
      {
        const auto ready = [&] { return begun < taken || all_taken; };
        absl::MutexLock lock(&mu);
        mu.Await(absl::Condition(&ready));
        if (begun == taken) return;
        piece = pieces_[begun++].get();
      }
      Parse(*bad_rows, piece);
    }
  };
  team_.Run(static_cast<size_t>(team_.threads()), [&](size_t task, int) {
    if (task == 0) take();
    parse();
  });

  std::vector<uint64_t> ids(Shapes().size());
  for (size_t i = 0; i < taken; ++i) {
    Piece& piece = *pieces_[i];
    for (const absl::Status& bad_row : piece.bad_rows) RETURN_IF_ERROR(bad_rows->Add(bad_row));
    RETURN_IF_ERROR(piece.status);
    for (size_t f = 0; f < ids.size(); ++f) ids[f] = piece.rows.features[f].ids.size();
    RETURN_IF_ERROR(out->AddRows(piece.rows.rows, ids, &piece.place));
  }
  RETURN_IF_ERROR(lines_->status());
  team_.Run(taken, [&](size_t i, int) { out->Write(pieces_[i]->rows, pieces_[i]->place); });
  return lines;
}

void TextSource::Parse(const BadRows& bad_rows, Piece* piece) const {
  if (piece->parser_opened != opened_) {
    piece->parser = parser_->Clone();
    piece->parser_opened = opened_;
  }
  LineReader lines(lines_->path(), piece->lines);
  BadRows own = bad_rows.ForLaterPart();
  piece->builder.Begin(&piece->rows);
  piece->status = piece->parser->Parse(&lines, piece->lines.lines, &piece->builder, &own).status();
  piece->builder.End();
  piece->bad_rows = own.kept();
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
