#ifndef SPARROW_BASE_LOG_H_
#define SPARROW_BASE_LOG_H_

// LOG(INFO) << "text": one line on stderr, with UTC time, severity and place. Lines of several threads do not mix.
// Thread-safe.

#include <sstream>

namespace sparrow {

enum class LogSeverity { kInfo, kWarning, kError };

// Lines below this severity are dropped. Default kInfo. Meant for main(). A line begins where a progress bar
// does, on a terminal, and takes its place.
void SetMinLogSeverity(LogSeverity severity);

namespace internal {

class LogLine {
 public:
  LogLine(LogSeverity severity, const char* file, int line);
  ~LogLine();  // Writes.
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;

  std::ostream& stream() { return stream_; }

 private:
  const LogSeverity severity_;
  std::ostringstream stream_;
};

inline constexpr LogSeverity kLogINFO = LogSeverity::kInfo;
inline constexpr LogSeverity kLogWARNING = LogSeverity::kWarning;
inline constexpr LogSeverity kLogERROR = LogSeverity::kError;

}  // namespace internal
}  // namespace sparrow

#define LOG(severity) ::sparrow::internal::LogLine(::sparrow::internal::kLog##severity, __FILE__, __LINE__).stream()

#endif  // SPARROW_BASE_LOG_H_
