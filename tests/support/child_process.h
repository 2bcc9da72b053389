#ifndef SPARROW_TESTS_SUPPORT_CHILD_PROCESS_H_
#define SPARROW_TESTS_SUPPORT_CHILD_PROCESS_H_

// A real program of ours, started by a test as a user would start it. Everything waits with a deadline; nothing
// outlives the test.

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sparrow {

class ChildProcess {
 public:
  struct Options {
    std::string directory;                 // Working directory; empty: the test's.
    std::vector<std::string> environment;  // "NAME=value", added to the test's.
  };

  // Starts arguments[0] (a path; see ProgramPath). CHECKs that it could be started.
  explicit ChildProcess(const std::vector<std::string>& arguments, const Options& options = {});
  ~ChildProcess();  // Kills it if it still runs.
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Waits for a line on stdout that contains `text`; returns what follows `text` on it. nullopt after `timeout`, or
  // when the program has ended without it.
  std::optional<std::string> WaitForOutput(const std::string& text, absl::Duration timeout = absl::Seconds(30));

  void Signal(int signal);

  // Waits for the end; the exit status (128 + signal if a signal ended it), or nullopt if it still runs after
  // `timeout`.
  std::optional<int> Wait(absl::Duration timeout = absl::Seconds(60));

  std::string Stdout() const;  // So far.
  std::string Stderr() const;
  int pid() const { return pid_; }

 private:
  void ReadAll(int fd, std::string* into);

  int pid_ = -1;
  std::optional<int> status_;

  mutable absl::Mutex mu_;
  std::string stdout_ ABSL_GUARDED_BY(mu_);
  std::string stderr_ ABSL_GUARDED_BY(mu_);
  int open_pipes_ ABSL_GUARDED_BY(mu_) = 2;

  std::vector<std::thread> readers_;
};

// The program that was built beside this test: "sparrowctl" -> BUILD/bin/sparrowctl.
std::string ProgramPath(const std::string& name);

// The finished run of a program.
struct RunResult {
  int status = 0;
  std::string out;
  std::string err;
};
// Runs to the end; CHECKs that it ended within `timeout`.
RunResult RunProgram(const std::vector<std::string>& arguments, absl::Duration timeout = absl::Seconds(60),
                     const ChildProcess::Options& options = {});

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_CHILD_PROCESS_H_
