#include "tests/support/child_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "absl/time/clock.h"
#include "base/check.h"

namespace sparrow {
namespace {

int StatusOf(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments, const Options& options) {
  int out[2];
  int err[2];
  CHECK_EQ(pipe2(out, O_CLOEXEC), 0);
  CHECK_EQ(pipe2(err, O_CLOEXEC), 0);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<std::string> environment = options.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  std::vector<char*> envp;
  for (std::string& entry : environment) envp.push_back(entry.data());
  envp.push_back(nullptr);

  pid_ = fork();
  CHECK_GE(pid_, 0);
  if (pid_ == 0) {
    // Only async-signal-safe calls from here.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) _exit(126);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  readers_.emplace_back([this, fd = out[0]] { ReadAll(fd, &stdout_); });
  readers_.emplace_back([this, fd = err[0]] { ReadAll(fd, &stderr_); });
}

ChildProcess::~ChildProcess() {
  if (!status_.has_value()) {
    kill(pid_, SIGKILL);
    Wait(absl::InfiniteDuration());
  }
  for (std::thread& reader : readers_) reader.join();
}

void ChildProcess::ReadAll(int fd, std::string* into) {
  char block[4096];
  for (;;) {
    const ssize_t got = read(fd, block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    absl::MutexLock lock(&mu_);
    into->append(block, static_cast<size_t>(got));
  }
  close(fd);
  absl::MutexLock lock(&mu_);
  --open_pipes_;
}

std::optional<std::string> ChildProcess::WaitForOutput(const std::string& text, absl::Duration timeout) {
  std::optional<std::string> rest;
  const auto found = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const size_t at = stdout_.find(text);
    const size_t end = at == std::string::npos ? at : stdout_.find('\n', at);
    if (end != std::string::npos) rest = stdout_.substr(at + text.size(), end - at - text.size());
    return rest.has_value() || open_pipes_ == 0;
  };
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&found), timeout);
  return rest;
}

void ChildProcess::Signal(int signal) { CHECK_EQ(kill(pid_, signal), 0); }

std::optional<int> ChildProcess::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!status_.has_value()) {
    int status = 0;
    const int got = waitpid(pid_, &status, WNOHANG);
    if (got == pid_) {
      status_ = StatusOf(status);
    } else if (absl::Now() > deadline) {
      return std::nullopt;
    } else {
      absl::SleepFor(absl::Milliseconds(5));  // A child's end has no condition to wait on that carries a deadline.
    }
  }
  return status_;
}

std::string ChildProcess::Stdout() const {
  absl::MutexLock lock(&mu_);
  return stdout_;
}

std::string ChildProcess::Stderr() const {
  absl::MutexLock lock(&mu_);
  return stderr_;
}

std::string ProgramPath(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

RunResult RunProgram(const std::vector<std::string>& arguments, absl::Duration timeout,
                     const ChildProcess::Options& options) {
  ChildProcess child(arguments, options);
  RunResult result;
  const std::optional<int> status = child.Wait(timeout);
  CHECK(status.has_value()) << arguments[0] << " did not end within " << absl::FormatDuration(timeout)
                            << "; stdout: " << child.Stdout() << "; stderr: " << child.Stderr();
  result.status = *status;
  child.WaitForOutput("\xff never printed", timeout);  // Until both pipes are closed, so that nothing is missing.
  result.out = child.Stdout();
  result.err = child.Stderr();
  return result;
}

}  // namespace sparrow
