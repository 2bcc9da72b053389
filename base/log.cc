#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sparrow {
namespace {

// Relaxed: a line that races with the change may go either way.
std::atomic<LogSeverity> min_severity{LogSeverity::kInfo};

constexpr char kLetters[] = "IWE";

}  // namespace

void SetMinLogSeverity(LogSeverity severity) { min_severity.store(severity, std::memory_order_relaxed); }

namespace internal {

LogLine::LogLine(LogSeverity severity, const char* file, int line) : severity_(severity) {
  const char* slash = std::strrchr(file, '/');
  stream_ << kLetters[static_cast<int>(severity)] << " "
          << absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()) << " "
          << (slash != nullptr ? slash + 1 : file) << ":" << line << "] ";
}

LogLine::~LogLine() {
  if (severity_ < min_severity.load(std::memory_order_relaxed)) return;
  stream_ << "\n";
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  const std::string text = (terminal ? "\r\x1b[K" : "") + stream_.str();
  std::fwrite(text.data(), 1, text.size(), stderr);  // stdio locks the stream, so a line stays whole.
}

}  // namespace internal
}  // namespace sparrow
