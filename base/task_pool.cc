#include "base/task_pool.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/parallel.h"

namespace sparrow {
namespace {

// A call is often followed by another one soon, and a thread that sleeps wakes up in about the time that a thousand
// rows take.
constexpr std::chrono::microseconds kSpin(50);

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Whether `ready` came true within kSpin.
template <typename Ready>
bool SpinUntil(const Ready& ready) {
  constexpr int kLooks = 32;  // Between looks at the clock.
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

TaskPool::~TaskPool() {
  std::vector<std::thread> helpers;
  {
    absl::MutexLock lock(&mu_);
    CHECK(calls_.empty());
    stop_ = true;
    wanted_changed_.SignalAll();
    helpers.swap(helpers_);
  }
  for (std::thread& helper : helpers) helper.join();
}

void TaskPool::Run(size_t tasks, int threads, absl::FunctionRef<void(size_t)> body) {
  CHECK_GT(threads, 0);
  const int wanted = static_cast<int>(std::min<size_t>(
                         tasks, static_cast<size_t>(std::min({threads, UsableThreads(), helpers_max_ + 1})))) -
                     1;
  if (wanted <= 0) {
    for (size_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  Call call{.body = body, .tasks = tasks, .wanted = wanted};
  {
    absl::MutexLock lock(&mu_);
    while (static_cast<int>(helpers_.size()) < helpers_max_) helpers_.emplace_back([this] { Help(); });
    calls_.push_back(&call);
    calling_.store(static_cast<int>(calls_.size()), std::memory_order_relaxed);
    for (int i = std::min(sleeping_, wanted); i > 0; --i) wanted_changed_.Signal();
  }
  {
    const ScopedThreads one(1);
    Work(&call);
  }
  {
    absl::MutexLock lock(&mu_);
    std::erase(calls_, &call);  // Who has not woken up yet is not waited for.
    calling_.store(static_cast<int>(calls_.size()), std::memory_order_relaxed);
  }
  const auto all_left = [&] { return call.inside.load(std::memory_order_acquire) == 0; };
  while (!all_left()) {
    if (!SpinUntil(all_left)) std::this_thread::yield();
  }
}

void TaskPool::Help() {
  UseThreads(1);
  for (;;) {
    SpinUntil([&] { return calling_.load(std::memory_order_relaxed) > 0; });
    Call* call;
    {
      absl::MutexLock lock(&mu_);
      while (!stop_ && calls_.empty()) {
        ++sleeping_;
        wanted_changed_.Wait(&mu_);
        --sleeping_;
      }
      if (stop_) return;
      call = calls_.front();
      call->inside.fetch_add(1, std::memory_order_relaxed);
      if (--call->wanted == 0) {
        calls_.erase(calls_.begin());
        calling_.store(static_cast<int>(calls_.size()), std::memory_order_relaxed);
      }
    }
    Work(call);
    call->inside.fetch_sub(1, std::memory_order_release);
  }
}

void TaskPool::Work(Call* call) {
  for (size_t task; (task = call->next.fetch_add(1, std::memory_order_relaxed)) < call->tasks;) call->body(task);
}

}  // namespace sparrow
