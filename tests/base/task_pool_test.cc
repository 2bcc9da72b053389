#include "base/task_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "base/parallel.h"

namespace sparrow {
namespace {

TEST(TaskPool, EachTaskIsDoneOnceAndSeenAfterwards) {
  const ScopedThreads many(8);
  for (const int helpers : {0, 1, 4}) {
    TaskPool pool(helpers);
    for (const size_t tasks : {0, 1, 2, 3, 100, 1000}) {
      for (const int threads : {1, 2, 8}) {
        std::vector<int> done(tasks);
        pool.Run(tasks, threads, [&](size_t task) { ++done[task]; });
        EXPECT_EQ(std::count(done.begin(), done.end(), 1), static_cast<int64_t>(tasks)) << helpers << " helpers";
      }
    }
  }
}

TEST(TaskPool, SeveralThreadsHaveTasksAtOnce) {
  TaskPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      UseThreads(1 + caller);
      for (int round = 0; round < 300; ++round) {
        std::vector<int> done(1 + static_cast<size_t>(round) % 20);
        pool.Run(done.size(), 4, [&](size_t task) { ++done[task]; });
        wrong += std::count(done.begin(), done.end(), 1) != static_cast<int64_t>(done.size());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(TaskPool, NoMoreThreadsThanWereAskedForOrTheCallerMayUse) {
  TaskPool pool(6);
  for (const auto& [asked, usable] : {std::pair{2, 8}, std::pair{8, 3}, std::pair{8, 1}}) {
    const ScopedThreads limit(usable);
    std::atomic<int> inside{0}, most{0};
    for (int round = 0; round < 100; ++round) {
      pool.Run(50, asked, [&](size_t) {
        const int now = ++inside;
        for (int before = most; before < now && !most.compare_exchange_weak(before, now);) {
        }
        std::this_thread::yield();
        --inside;
      });
    }
    EXPECT_LE(most, std::min(asked, usable));
  }
}

TEST(TaskPool, ATaskIsOneThreadsWork) {
  TaskPool pool(2);
  const ScopedThreads many(3);
  std::atomic<int> others{0};
  pool.Run(100, 3, [&](size_t) {
    const std::thread::id me = std::this_thread::get_id();
    if (UsableThreads() != 1) ++others;
    ParallelFor(100, 1, [&](int64_t, int64_t) { others += std::this_thread::get_id() != me ? 1 : 0; });
    pool.Run(10, 3, [&](size_t) { others += std::this_thread::get_id() != me ? 1 : 0; });
  });
  EXPECT_EQ(others, 0);
  EXPECT_EQ(UsableThreads(), 3) << "the caller's limit is back";
}

// With ParallelFor it would wait for the third thread.
TEST(TaskPool, ACallDoesNotWaitForThreadsThatAreBusyElsewhere) {
  TaskPool pool(1);
  const ScopedThreads many(2);
  std::atomic<bool> begun{false}, over{false};
  std::thread other([&] {
    const ScopedThreads two(2);
    std::atomic<int> inside{0};
    pool.Run(2, 2, [&](size_t) {
      if (++inside == 2) begun = true;
      while (!over) std::this_thread::yield();
    });
  });
  while (!begun) std::this_thread::yield();  // The only helper is in there.
  int done = 0;
  pool.Run(5, 2, [&](size_t) { ++done; });
  EXPECT_EQ(done, 5);
  over = true;
  other.join();
}

}  // namespace
}  // namespace sparrow
