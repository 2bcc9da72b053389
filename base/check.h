#ifndef SPARROW_BASE_CHECK_H_
#define SPARROW_BASE_CHECK_H_

// CHECK(condition) << "more": ends the process with file, line and message when one of our own invariants is broken. On
// in every build. DCHECK is for per-row loops and is off under NDEBUG. Anything that comes from outside the process (a
// peer, a file, an option) gets an absl::Status instead. Debian 12's abseil has no absl/log, hence these.

#include <sstream>

namespace sparrow::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();  // Prints and aborts.
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;

  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Makes both arms of the conditional in CHECK void.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace sparrow::internal

#define CHECK(condition) \
  (condition)            \
      ? (void)0          \
      : ::sparrow::internal::Voidify() & ::sparrow::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define CHECK_EQ(a, b) CHECK((a) == (b)) << (a) << " against " << (b) << " "
#define CHECK_LT(a, b) CHECK((a) < (b)) << (a) << " against " << (b) << " "
#define CHECK_LE(a, b) CHECK((a) <= (b)) << (a) << " against " << (b) << " "
#define CHECK_GT(a, b) CHECK((a) > (b)) << (a) << " against " << (b) << " "
#define CHECK_GE(a, b) CHECK((a) >= (b)) << (a) << " against " << (b) << " "

#ifdef NDEBUG
#define DCHECK(condition) CHECK(true || (condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif

#endif  // SPARROW_BASE_CHECK_H_
