#ifndef SPARROW_WORKER_LINE_READER_H_
#define SPARROW_WORKER_LINE_READER_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/byte_source.h"

namespace sparrow {

// Asked once a block of input; true ends the reading with Cancelled. May be null: never.
using StopCheck = std::function<bool()>;

// Whole lines of a file, apart from it; its memory is used again.
struct LineChunk {
  std::vector<char> bytes;  // With what may be read behind the last line.
  size_t size = 0;          // Of the lines.
  uint64_t lines = 0;
  uint64_t lines_before = 0;  // In the file.
  bool has_zero_byte = false;
};

// The lines of one file, plain or gzip, through a buffer of bounded size. A line ends in LF, CRLF or the end of the
// file; a UTF-8 byte order mark at the beginning is passed over. Not thread-safe.
class LineReader {
 public:
  static constexpr size_t kSlackBytes = 64;
  static constexpr size_t kLineBytesMax = size_t{64} << 20;

  // Of a file's lines that were taken from a reader of `path`. The chunk outlives it.
  LineReader(const std::string& path, const LineChunk& chunk);

  // Errors of ByteSource::Open.
  static absl::StatusOr<std::unique_ptr<LineReader>> Open(const std::string& path, StopCheck stop);

  // Sets *line, without its end, valid until the next call. The byte after it is CR or LF and kSlackBytes after it can
  // be read, so a parser needs no bounds check a byte. False: the end, or an error; status() says which.
  bool Next(absl::string_view* line) {
    const char* newline = FindNewline();
    if (newline == nullptr) return false;
    const char* end = newline;
    if (end != next_ && end[-1] == '\r') --end;
    *line = absl::string_view(next_, static_cast<size_t>(end - next_));
    next_ = const_cast<char*>(newline) + 1;
    ++line_number_;
    return true;
  }

  // Takes up to n lines, of about so many bytes, for a reader of their own; returns how many. 0: as Next.
  uint64_t Take(uint64_t n, size_t bytes, LineChunk* chunk);

  // Passes over up to n lines; returns how many there were. Fewer than n: as Next.
  uint64_t Skip(uint64_t n);

  // No line is left, or an error.
  bool AtEnd() { return FindNewline() == nullptr; }

  // Whether the bytes read so far have a zero byte among them, which no text has: lines need not be searched for one
  // before that.
  bool has_zero_byte() const { return has_zero_byte_; }

  const absl::Status& status() const { return status_; }
  uint64_t line_number() const { return line_number_; }  // Of the last line, from 1.
  const std::string& path() const { return path_; }
  uint64_t file_bytes_read() const { return source_ == nullptr ? 0 : source_->file_bytes_read(); }

 private:
  LineReader(std::string path, StopCheck stop, std::unique_ptr<ByteSource> source);

  // The end of the line that begins at next_; null at the end of the file or after an error.
  const char* FindNewline() {
    const void* found = std::memchr(next_, '\n', static_cast<size_t>(end_ - next_));
    return found != nullptr ? static_cast<const char*>(found) : FillToNewline();
  }
  const char* FillToNewline();

  const std::string path_;
  const StopCheck stop_;
  const std::unique_ptr<ByteSource> source_;  // Null, as buffer_ then is: of a chunk.
  std::unique_ptr<char[]> buffer_;
  size_t capacity_;  // Without the slack.
  char* next_;       // The bytes not yet handed out are [next_, end_).
  char* end_;
  bool at_start_ = true;  // Nothing has been read.
  bool has_zero_byte_ = false;
  bool drained_ = false;  // The source has ended, and its last line has a newline.
  uint64_t line_number_ = 0;
  absl::Status status_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_LINE_READER_H_
