#ifndef SPARROW_WORKER_TEXT_SOURCE_H_
#define SPARROW_WORKER_TEXT_SOURCE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_team.h"
#include "worker/line_parser.h"
#include "worker/line_reader.h"
#include "worker/row_source.h"

namespace sparrow {

// Rows of text files, one a line, by a parser; one file is open at a time. Not thread-safe.
//
// With several threads one takes lines out of the file (and inflates it), the others parse what it has taken, each into
// a batch of its own; these are then put together in the order of the file. Rows, errors and what is counted are those
// of one thread.
class TextSource : public RowSource {
 public:
  struct Options {
    StopCheck stop;
    int threads = 1;
  };
  TextSource(std::vector<std::string> files, std::unique_ptr<LineParser> parser, Options options);
  ~TextSource() override;

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
  struct Piece;  // Some lines and their rows.

  // Opens files until one has a line left; false after the last.
  absl::StatusOr<bool> Advance();
  void Close();
  // Reads up to n lines of the open file, fewer if there are many or it ends, by all threads. Returns how many.
  absl::StatusOr<uint64_t> ReadPieces(uint64_t n, BatchBuilder* out, BadRows* bad_rows);
  void Parse(const BadRows& bad_rows, Piece* piece) const;

  const std::vector<std::string> files_;
  const std::unique_ptr<LineParser> parser_;
  const StopCheck stop_;
  std::unique_ptr<LineReader> lines_;  // Null: between files.
  size_t next_file_ = 0;
  uint64_t opened_ = 0;        // How often a file was.
  uint64_t closed_bytes_ = 0;  // Read from files that are closed again.
  std::optional<uint64_t> counted_rows_;

  ThreadTeam team_;
  const BatchBuilder* pieces_of_ = nullptr;  // Whose rows are in pieces_.
  std::vector<std::unique_ptr<Piece>> pieces_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_TEXT_SOURCE_H_
