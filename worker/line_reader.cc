#include "worker/line_reader.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr size_t kBufferBytes = 1 << 18;  // Fits into the second-level cache, so that parsing finds it there.
constexpr absl::string_view kByteOrderMark("\xef\xbb\xbf", 3);

}  // namespace

absl::StatusOr<std::unique_ptr<LineReader>> LineReader::Open(const std::string& path, StopCheck stop) {
  ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> source, ByteSource::Open(path));
  return std::unique_ptr<LineReader>(new LineReader(path, std::move(stop), std::move(source)));
}

LineReader::LineReader(std::string path, StopCheck stop, std::unique_ptr<ByteSource> source)
    : path_(std::move(path)),
      stop_(std::move(stop)),
      source_(std::move(source)),
      buffer_(std::make_unique<char[]>(kBufferBytes + kSlackBytes)),
      capacity_(kBufferBytes),
      next_(buffer_.get()),
      end_(buffer_.get()) {}

LineReader::LineReader(const std::string& path, const LineChunk& chunk)
    : path_(path),
      capacity_(chunk.size),
      next_(const_cast<char*>(chunk.bytes.data())),  // Read only: it is drained.
      end_(next_ + chunk.size),
      at_start_(false),
      has_zero_byte_(chunk.has_zero_byte),
      drained_(true),
      line_number_(chunk.lines_before) {}

uint64_t LineReader::Take(uint64_t n, size_t bytes, LineChunk* chunk) {
  chunk->lines = 0;
  chunk->lines_before = line_number_;
  if (n == 0 || FindNewline() == nullptr) return 0;
  // What is in the buffer.
  const char* to = next_;
  while (chunk->lines < n && to < next_ + bytes) {
    const void* newline = std::memchr(to, '\n', static_cast<size_t>(end_ - to));
    if (newline == nullptr) break;
    to = static_cast<const char*>(newline) + 1;
    ++chunk->lines;
  }
  chunk->size = static_cast<size_t>(to - next_);
  if (chunk->bytes.size() < chunk->size + kSlackBytes) chunk->bytes.resize(chunk->size + kSlackBytes);
  std::memcpy(chunk->bytes.data(), next_, chunk->size);
  chunk->has_zero_byte = has_zero_byte_;
  next_ += chunk->size;
  line_number_ += chunk->lines;
  return chunk->lines;
}

uint64_t LineReader::Skip(uint64_t n) {
  uint64_t skipped = 0;
  for (; skipped < n; ++skipped) {
    const char* newline = FindNewline();
    if (newline == nullptr) break;
    next_ = const_cast<char*>(newline) + 1;
    ++line_number_;
  }
  return skipped;
}

const char* LineReader::FillToNewline() {
  while (!drained_ && status_.ok()) {
    if (stop_ && stop_()) {
      status_ = absl::CancelledError(absl::StrCat(path_, ": reading was stopped"));
      break;
    }
    const size_t kept = static_cast<size_t>(end_ - next_);
    if (kept == capacity_) {
      if (capacity_ >= kLineBytesMax) {
        status_ = absl::InvalidArgumentError(absl::StrCat(path_, ":", line_number_ + 1, ": the line is longer than ",
                                                          kLineBytesMax, " bytes; is this a text file?"));
        break;
      }
      auto larger = std::make_unique<char[]>(2 * capacity_ + kSlackBytes);
      std::memcpy(larger.get(), next_, kept);
      buffer_ = std::move(larger);
      capacity_ *= 2;
    } else if (kept != 0) {
      std::memmove(buffer_.get(), next_, kept);
    }
    next_ = buffer_.get();
    end_ = next_ + kept;

    absl::StatusOr<size_t> got = source_->Read(end_, capacity_ - kept);
    if (!got.ok()) {
      status_ = got.status();
      break;
    }
    has_zero_byte_ = has_zero_byte_ || std::memchr(end_, 0, *got) != nullptr;
    size_t searched = kept;
    end_ += *got;
    drained_ = *got == 0;
    const size_t held = static_cast<size_t>(end_ - next_);
    if (at_start_ && (held >= kByteOrderMark.size() || drained_)) {
      at_start_ = false;
      if (absl::StartsWith(absl::string_view(next_, held), kByteOrderMark)) next_ += kByteOrderMark.size();
      searched = 0;
    }
    if (at_start_) continue;
    // A last line without its end gets one; the slack has room for it.
    if (drained_ && next_ != end_ && end_[-1] != '\n') *end_++ = '\n';
    const void* found = std::memchr(next_ + searched, '\n', static_cast<size_t>(end_ - next_) - searched);
    if (found != nullptr) return static_cast<const char*>(found);
  }
  return nullptr;
}

}  // namespace sparrow
