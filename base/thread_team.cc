#include "base/thread_team.h"

#include "base/check.h"

namespace sparrow {

ThreadTeam::ThreadTeam(int threads) {
  CHECK_GT(threads, 0);
  for (int thread = 1; thread < threads; ++thread) helpers_.emplace_back([this, thread] { Help(thread); });
}

ThreadTeam::~ThreadTeam() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadTeam::Run(size_t tasks, Body body) {
  if (tasks <= 1 || helpers_.empty()) {
    for (size_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  {
    absl::MutexLock lock(&mu_);
    next_.store(0, std::memory_order_relaxed);
    body_ = &body;
    tasks_ = tasks;
    changed_.SignalAll();
  }
  Work(body, tasks, 0);
  absl::MutexLock lock(&mu_);
  body_ = nullptr;  // Who has not woken up yet is not waited for.
  while (busy_ > 0) changed_.Wait(&mu_);
}

void ThreadTeam::Help(int thread) {
  mu_.Lock();
  for (;;) {
    while (!stop_ && body_ == nullptr) changed_.Wait(&mu_);
    if (stop_) break;
    const Body& body = *body_;
    const size_t tasks = tasks_;
    ++busy_;
    mu_.Unlock();
    Work(body, tasks, thread);
    mu_.Lock();
    if (body_ == &body) body_ = nullptr;  // No task is left.
    if (--busy_ == 0) changed_.SignalAll();
  }
  mu_.Unlock();
}

void ThreadTeam::Work(const Body& body, size_t tasks, int thread) {
  for (size_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks;) body(task, thread);
}

}  // namespace sparrow
